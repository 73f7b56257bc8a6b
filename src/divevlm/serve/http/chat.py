"""What a chat request is checked for, and how it is answered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from divevlm.engine import Session
from divevlm.serve.http import pictures
from divevlm.serve.http.generate import Order
from divevlm.serve.http.limits import Limits, line, told
from divevlm.serve.http.metrics import Metrics
from divevlm.serve.http.model import Served
from divevlm.serve.http.places import Places
from divevlm.serve.http.request import Chat, Deployed, Picture, read

LOG = logging.getLogger("divevlm.serve")


@dataclass
class Asked:
    """A request that was found to be in order."""

    chat: Chat
    session: Session | None  # not attached yet; None: no pruning
    data: list[bytes]  # of its pictures, not yet unpacked


class Desk:
    """A served model, its method, its queue, and what it takes in."""

    def __init__(self, served: Served, deployed: Deployed, limits: Limits, hosts: Collection[str] = ()) -> None:
        self.served, self.deployed, self.limits, self.hosts = served, deployed, limits, hosts
        self.places = Places(limits.queue)
        self.metrics = Metrics(self.places)

    async def check(self, body: bytes) -> Asked:
        chat = read(body, self.served.name, self.limits)
        session = self.served.session(self.deployed.asked(chat))
        data = await pictures.contents(chat.urls, self.hosts, self.limits)
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
        if not isinstance(error, ValueError):  # may be a fault of ours
            LOG.error("a request could not be prepared", exc_info=error)
        return 400, f"the model's processor refuses this request: {type(error).__name__}: {line(error)}"
    if isinstance(error, ValueError):
        return 400, line(error)
    LOG.error("a request failed", exc_info=error)
    return 500, "the model failed on this request; the server's log says more"
