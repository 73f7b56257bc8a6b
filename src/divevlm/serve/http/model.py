"""transformers' own server parts with pruning: they load, prepare, generate and stream; this attaches the method.

Everything that touches the model runs in the one thread of its generation manager, so a session is attached for one request
at a time, and two requests with different methods never meet. Works with transformers 5.10 to 5.23.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from contextlib import nullcontext
from typing import Any

from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerateManager, GenerationState

from divevlm.engine import Session
from divevlm.methods import Method
from divevlm.serve.http.limits import Limits, RequestError, line


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


class State(GenerationState):  # type: ignore[misc]
    def __init__(self, manager: Manager) -> None:
        super().__init__()
        self.manager = manager

    def get_manager(self, model_id: str, use_cb: bool = False) -> Manager:
        return self.manager


class Handler(ChatCompletionHandler):  # type: ignore[misc]
    """Names the model as it is served, adds the report, samples where a temperature asks for it."""

    def __init__(self, models: ModelManager, manager: Manager, name: str) -> None:
        super().__init__(models, State(manager))
        self.name, self.orders = name, manager.orders

    def _build_generation_config(self, body: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        config = super()._build_generation_config(body, *args, **kwargs)
        if body.get("temperature") == 0:
            config.do_sample, config.temperature, config.top_p, config.top_k = False, None, None, None
        elif body.get("temperature") is not None or body.get("top_p") is not None:
            config.do_sample = True
        return config

    def _build_completion(self, request_id: str, content: str, model_id: str, **more: Any) -> dict[str, Any]:
        made: dict[str, Any] = super()._build_completion(request_id, content, self.name, **more)
        return made | {"divevlm": self.orders[request_id].report}

    def _build_chunk_sse(self, request_id: str = "", **parts: Any) -> str:
        text: str = super()._build_chunk_sse(request_id, **(parts | {"model": self.name}))
        if parts.get("finish_reason") is None:
            return text
        chunk = json.loads(text.removeprefix("data: ")) | {"divevlm": self.orders[request_id].report}
        return f"data: {json.dumps(chunk)}\n\n"


class Served:
    """A model that is loaded, and who answers for it."""

    def __init__(self, source: str, name: str, limits: Limits, **options: Any) -> None:
        """options: of transformers' ModelManager (device, dtype, attn_implementation, ...)"""
        self.models = ModelManager(force_model=source, **options)
        (loaded,) = self.models.loaded_models.values()
        self.model, self.processor, self.name = loaded.model, loaded.processor, name
        text = self.model.config.get_text_config()
        self.manager = Manager(limits, getattr(text, "max_position_embeddings", None))
        self.handler = Handler(self.models, self.manager, name)

    def session(self, method: Method | None) -> Session | None:
        """Refuses what does not go with the model. Nothing is attached yet."""
        try:
            return None if method is None else Session(self.model, method)
        except (ValueError, TypeError) as error:
            raise RequestError(400, f"divevlm: {line(error)}", "divevlm") from None
