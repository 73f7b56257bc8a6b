"""Pictures of a request. Data URLs; other addresses only of hosts that the server was told to trust; never a file."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Collection, Iterable
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import httpx

from divevlm.serve.http.limits import Limits, RequestError, line

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # decoders without a programming language inside


async def contents(urls: Iterable[str], hosts: Collection[str], limits: Limits) -> list[bytes]:
    """The bytes of a request's pictures; all together no more than its body may have."""
    found: list[bytes] = []
    for url in urls:
        found.append(await _content(url, hosts, limits, room=limits.body - sum(map(len, found))))
    return found


async def _content(url: str, hosts: Collection[str], limits: Limits, room: int) -> bytes:
    if url.startswith("data:"):
        return _data(url)
    if not hosts:
        raise _refused(f"a data URL (data:image/png;base64,...), got {url!r:.80}")
    if not url.startswith(("https://", "http://")):
        raise _refused(f"a data URL or an address on {', '.join(sorted(hosts))}, got {url!r:.80}")
    return await _fetched(url, hosts, limits, room)


def _data(url: str) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise _refused(f"a data URL in base64 (data:image/png;base64,...), got {url!r:.80}")
    try:
        return base64.b64decode(unquote_to_bytes(text) if "%" in text else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(f"a data URL in base64, got one that is not: {line(error)}") from None


async def _fetched(url: str, hosts: Collection[str], limits: Limits, room: int) -> bytes:
    """Only from the hosts, no redirects, no more bytes than there is room for."""
    try:
        address = httpx.URL(url)
        asked = address.host if address.port is None else f"{address.host}:{address.port}"
        if asked not in hosts or address.userinfo:
            raise _refused(f"a data URL or an address on {', '.join(sorted(hosts))}, got {url!r:.80}")
        found = bytearray()
        async with (
            asyncio.timeout(limits.seconds),
            httpx.AsyncClient(follow_redirects=False, timeout=limits.seconds) as client,
            client.stream("GET", address) as response,
        ):
            if response.status_code != 200:
                raise _refused(f"there, got status {response.status_code} from {asked}")
            async for piece in response.aiter_bytes():
                found += piece
                if len(found) > room:
                    raise _refused(
                        f"at most {limits.body} bytes with the request's other pictures, got more from {asked}"
                    )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
        raise _refused(f"reachable, got {type(error).__name__} from {url!r:.80}") from None
    return bytes(found)


def check(data: bytes, limits: Limits) -> None:
    """By its head alone: nothing is unpacked yet."""
    with _open(data) as opened:
        wide, high = opened.size
    if wide * high > limits.pixels:
        raise _refused(f"of at most {limits.pixels} pixels, got {wide} x {high}")


def decode(data: bytes) -> Image.Image:
    """Upright, RGB, on white."""
    from divevlm.media import upright

    with _open(data) as opened:
        try:
            return upright(opened)
        except Exception as error:  # what a decoder finds wrong with a file it tells by any exception
            raise _refused(f"a picture, got a broken one: {line(error)}") from None


def _open(data: bytes) -> Image.Image:
    from PIL import Image

    try:
        return Image.open(BytesIO(data), formats=FORMATS)
    except Exception as error:  # the same; a bomb is told here too
        kinds = ", ".join(FORMATS)
        raise _refused(f"a picture ({kinds}), got {len(data)} bytes: {line(error)}") from None


def _refused(allowed: str) -> RequestError:
    return RequestError(400, f"image_url must be {allowed}", "messages")
