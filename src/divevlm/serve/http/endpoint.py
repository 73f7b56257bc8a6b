"""One request, from its first byte to its last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from divevlm.serve.http.chat import Asked, Desk, blame
from divevlm.serve.http.generate import Order
from divevlm.serve.http.limits import Limits, RequestError
from divevlm.serve.http.places import Place

NOT_BEGUN = 499  # what is counted if a client leaves before its answer begins


class Endpoint:
    """An ASGI application for one path: takes a request in, has it wait, and gives it to `answer` when it is its turn."""

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
            while more and size <= limits.body:  # uvicorn throws away what is left, so that the client sees why
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _LeftError
                more = message.get("more_body", False)
                found += message["body"]
                size = len(found)
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
