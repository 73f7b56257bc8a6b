"""transformers' generation thread with pruning.

Everything that touches the model runs in that one thread, so a session is attached for one request at a time, and two requests
with different methods never meet.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import nullcontext
from typing import Any

from transformers.cli.serving.utils import GenerateManager

from divevlm.engine import Session
from divevlm.serve.http.limits import Limits, RequestError


class Order:
    """What one request wants of the model, and what became of it."""

    def __init__(self, session: Session | None) -> None:
        self.session = session  # None: no pruning
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self.loop.create_future()  # the model is free again
        self.begun = False  # the model's thread has it
        self.left = threading.Event()  # nobody waits for the answer any more
        self.error: Exception | None = None

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    @property
    def report(self) -> dict[str, Any]:
        """For the response. A request without pictures has no more than the method's name."""
        if self.session is None:
            return {"method": "vanilla", "samples": []}
        history = self.session.history
        return history[-1].to_dict() if history else {"method": self.session.method.name, "samples": []}


class Pruned:
    """What the generation manager takes for the model: its `generate`, with the method of one request attached."""

    def __init__(self, model: Any, order: Order) -> None:
        self.model, self.order = model, order
        if hasattr(model, "has_talker"):
            self.has_talker = model.has_talker

    def generate(self, **inputs: Any) -> Any:
        order = self.order
        try:
            with order.session or nullcontext():
                return self.model.generate(**inputs, stopping_criteria=[self._left])
        except Exception as error:
            order.error = error
            raise
        finally:
            order.loop.call_soon_threadsafe(order.end)

    def _left(self, ids: Any, scores: Any, **_: Any) -> Any:
        """A stopping criterion, asked after every token."""
        return ids.new_full((len(ids),), self.order.left.is_set()).bool()


class Manager(GenerateManager):  # type: ignore[misc]
    """Its methods find the order of a request by the request's id."""

    def __init__(self, limits: Limits, context: int | None) -> None:
        super().__init__()
        self.limits, self.context = limits, context
        self.orders: dict[str, Order] = {}

    def generate_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str, **more: Any
    ) -> Any:
        order = self._begin(request_id, inputs, gen_config)
        tokenizer = getattr(
            processor, "tokenizer", processor
        )  # stop words need its vocabulary, which a processor hides
        try:
            return super().generate_streaming(Pruned(model, order), tokenizer, inputs, gen_config, request_id, **more)
        except Exception:
            order.end()
            raise

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str, **more: Any
    ) -> Any:
        order = self._begin(request_id, inputs, gen_config)
        tokenizer = getattr(processor, "tokenizer", processor)
        try:
            return await super().generate_non_streaming(
                Pruned(model, order), tokenizer, inputs, gen_config, request_id, **more
            )
        except Exception:
            order.end()
            raise

    def async_submit(self, fn: Any, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """A caller that is cancelled leaves its result to nobody, not to a future that refuses it."""
        return asyncio.shield(super().async_submit(fn, *args, **kwargs))

    def _begin(self, request_id: str, inputs: Any, gen_config: Any) -> Order:
        self.check(inputs["input_ids"].shape[-1], gen_config.max_new_tokens)
        order = self.orders[request_id]
        order.begun = True
        return order

    def check(self, length: int, new: int) -> None:
        """How many tokens come in, and how many may go out."""
        if length > self.limits.prompt_tokens:
            raise RequestError(
                400, f"messages must have at most {self.limits.prompt_tokens} tokens, got {length}", "messages"
            )
        if self.context is not None and length + new > self.context:
            room = f"{self.context} tokens, which is what the model can read"
            raise RequestError(
                400, f"messages and max_tokens must have at most {room}, got {length} + {new}", "messages"
            )
