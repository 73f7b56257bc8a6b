"""The explorer page of a request: what its method kept, step by step, beside the answer with all tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from starlette.responses import HTMLResponse, Response

from divevlm.methods import Method
from divevlm.methods.dive import DIVE
from divevlm.models import family_of
from divevlm.prompts import Prompt, inputs
from divevlm.serve.http import pictures
from divevlm.serve.http.chat import Asked, Desk
from divevlm.serve.http.generate import Order
from divevlm.serve.http.limits import RequestError
from divevlm.serve.http.request import Chat, Text
from divevlm.viz.asking import ask
from divevlm.viz.explorer import page

WORDS = 64  # of an answer: it is given several times


async def explore(desk: Desk, asked: Asked, order: Order) -> Response:
    """A chat request of one user's message; answers are greedy."""
    _check(asked.chat)
    if asked.session is None or not asked.data:
        raise RequestError(
            400, "messages must have a picture and divevlm a method that prunes, for the explorer", "messages"
        )
    question, method = _question(asked.chat), _traced(asked.session.method)
    length = min(asked.chat.length or WORDS, WORDS)
    served = desk.served

    def tick(*_: object) -> None:
        if order.left.is_set():
            raise ValueError("the client left")

    def run() -> str:
        try:
            images = [pictures.decode(data) for data in asked.data]
            prompt = inputs(served.processor, family_of(served.model), [Prompt.of(question, images)])
            served.manager.check(prompt["input_ids"].shape[-1], length)
            settings = [("all tokens", None), (f"{method.name} {method.keep}", method)]
            more: dict[str, Any] = {"max_new_tokens": length, "name": served.name, "tick": tick}
            return page(ask(served.model, served.processor, question, images, settings, **more))
        finally:
            order.loop.call_soon_threadsafe(order.end)

    order.begun = True
    made: asyncio.Future[str] = served.manager.async_submit(run)
    return HTMLResponse(await made)


def _check(chat: Chat) -> None:
    """What the explorer would ignore is refused; 0 and false are what it does."""
    if len(chat.messages) > 1 or chat.messages[0].role != "user":
        raise RequestError(400, "messages must be one user's message, for the explorer", "messages")
    for name in ("temperature", "top_p", "frequency_penalty", "seed", "stop", "stream", "stream_options"):
        if getattr(chat, name):
            raise RequestError(400, f"{name} must be left out for the explorer, got {getattr(chat, name)!r:.80}", name)


def _question(chat: Chat) -> str:
    content = chat.messages[0].content
    return content if isinstance(content, str) else " ".join(part.text for part in content if isinstance(part, Text))


def _traced(method: Method) -> Method:
    return replace(method, trace=True) if isinstance(method, DIVE) else method
