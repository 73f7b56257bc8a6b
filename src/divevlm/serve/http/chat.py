"""One request, from its first byte to its last."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from divevlm.engine import Session
from divevlm.serve.http import pictures
from divevlm.serve.http.limits import Limits, RequestError, line, told
from divevlm.serve.http.metrics import Metrics
from divevlm.serve.http.model import Order, Served
from divevlm.serve.http.places import Place, Places
from divevlm.serve.http.request import Chat, Deployed, Picture, read

NOT_BEGUN = 499  # what is counted if a client leaves before its answer begins
LOG = logging.getLogger("divevlm.serve")


@dataclass
class Asked:
    """A request that was found to be in order."""

    chat: Chat
    session: Session | None  # not attached yet; None: no pruning
    data: list[bytes]  # of its pictures, not yet unpacked


class Desk:
    """Takes requests in, has them wait, and gives them to `answer` when it is their turn."""

    def __init__(self, served: Served, deployed: Deployed, limits: Limits, hosts: Collection[str] = ()) -> None:
        self.served, self.deployed, self.limits, self.hosts = served, deployed, limits, hosts
        self.places = Places(limits.queue)
        self.metrics = Metrics(self.places)

    def endpoint(self, answer: Callable[[Asked, Order], Awaitable[Response]]) -> Endpoint:
        return Endpoint(self, answer)

    async def check(self, body: bytes) -> Asked:
        chat = read(body, self.served.name, self.limits)
        session = self.served.session(self.deployed.asked(chat))
        data = [await pictures.content(url, self.hosts, self.limits) for url in chat.urls]
        for picture in data:
            pictures.check(picture, self.limits)
        return Asked(chat, session, data)

    async def complete(self, asked: Asked, order: Order) -> Response:
        """By transformers' handler. It gets pictures, no addresses: it would open any."""
        images = iter([await asyncio.to_thread(pictures.decode, data) for data in asked.data])
        body = asked.chat.model_dump(exclude_none=True, exclude={"divevlm", "model", "n", "user", "stream_options"})
        for message, given in zip(body["messages"], asked.chat.messages, strict=True):
            if not isinstance(given.content, str):
                parts = zip(message["content"], given.content, strict=True)
                message["content"] = [
                    {"type": "image_url", "image_url": {"url": next(images)}} if isinstance(kind, Picture) else part
                    for part, kind in parts
                ]
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = asked.chat.length or self.limits.new_tokens
        order.over.add_done_callback(lambda _: self.metrics.note(order.report))
        response: Response = await self.served.handler.handle_request(body, order.id)
        if isinstance(response, StreamingResponse):
            response.body_iterator = _stream(response.body_iterator, order)
        return response


async def _stream(pieces: Any, order: Order) -> AsyncIterator[str]:
    """The handler's chunks; an error as JSON, whatever is in its message; the end as OpenAI marks it."""
    async for piece in pieces:
        if order.error is not None:
            status, message = blame(order, order.error)
            yield f"data: {json.dumps({'error': told(status, message)})}\n\n"
            return
        yield piece
    yield "data: [DONE]\n\n"


def blame(order: Order, error: Exception) -> tuple[int, str]:
    """Whose fault: what can't be prepared, and what the engine or the model refuse by ValueError, is the request's."""
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail)
    if not order.begun:
        return 400, f"the model's processor refuses this request: {type(error).__name__}: {line(error)}"
    if isinstance(error, ValueError):
        return 400, line(error)
    LOG.error("a request failed", exc_info=error)
    return 500, "the model failed on this request; the server's log says more"


class Endpoint:
    """An ASGI application for one path."""

    def __init__(self, desk: Desk, answer: Callable[[Asked, Order], Awaitable[Response]]) -> None:
        self.desk, self.answer = desk, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, status = time.monotonic(), NOT_BEGUN

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._while_there(scope, receive, counted)
        except RequestError as refused:
            if status == NOT_BEGUN:
                await refused.response()(scope, receive, counted)
        finally:
            self.desk.metrics.requests.labels(status).inc()
            self.desk.metrics.seconds.observe(time.monotonic() - begun)

    async def _while_there(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the client has its answer or is gone."""
        kind = dict(scope["headers"]).get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":  # also what other sites' pages can't send without asking
            raise RequestError(415, f"Content-Type must be application/json, got {kind.decode('latin-1')!r:.80}")
        place = self.desk.places.take()
        try:
            body = await _body(receive, self.desk.limits)
            work = asyncio.ensure_future(self._serve(body, place, scope, send))
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            finally:
                gone.cancel()
                if not work.done():
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
        except _LeftError:
            return
        finally:
            place.leave()

    async def _serve(self, body: bytes, place: Place, scope: Scope, send: Send) -> None:
        asked = await self.desk.check(body)
        over = await place.turn()
        order = Order(asked.session)
        orders = self.desk.served.manager.orders
        orders[order.id] = order
        order.over.add_done_callback(lambda _: over())  # the model may go on for a moment when the client is gone
        try:
            response = await self.answer(asked, order)
            await response(scope, _never, send)
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(*blame(order, error)) from error
        finally:
            order.left.set()
            del orders[order.id]
            if not order.begun:
                order.end()


class _LeftError(Exception):
    pass


async def _body(receive: Receive, limits: Limits) -> bytes:
    found, size, more = bytearray(), 0, True
    try:
        async with asyncio.timeout(limits.seconds):
            while more and size <= 4 * limits.body:  # a client that is still sending would not read why it was refused
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _LeftError
                more = message.get("more_body", False)
                size += len(message["body"])
                if size <= limits.body:
                    found += message["body"]
    except TimeoutError:
        raise RequestError(408, f"the body must arrive within {limits.seconds:g} s, got {size} bytes of it") from None
    if size > limits.body:
        raise RequestError(413, f"the body must have at most {limits.body} bytes, got {size} or more")
    return bytes(found)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never() -> Message:
    """For a response that would watch for a client that leaves: that is done here."""
    await asyncio.Event().wait()
    raise AssertionError
