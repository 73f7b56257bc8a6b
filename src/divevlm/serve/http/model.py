"""transformers' own server parts load, prepare and stream; this names, reports and refuses. For transformers 5.10 to 5.23."""

from __future__ import annotations

import json
from typing import Any

from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerationState

from divevlm.engine import Session
from divevlm.loading import one_line_errors
from divevlm.methods import Method
from divevlm.processors import processor_of
from divevlm.serve.http.generate import Manager
from divevlm.serve.http.limits import Limits, RequestError, line


class Models(ModelManager):  # type: ignore[misc]
    def _load_processor(self, model_id_and_revision: str, *_: Any, **__: Any) -> Any:
        """Also where torchvision is missing."""
        source, revision = model_id_and_revision.rsplit("@", 1)
        return processor_of(source, revision=revision)


class State(GenerationState):  # type: ignore[misc]
    def __init__(self, manager: Manager) -> None:
        super().__init__()
        self.manager = manager

    def get_manager(self, model_id: str, use_cb: bool = False) -> Manager:
        return self.manager


class Handler(ChatCompletionHandler):  # type: ignore[misc]
    """Names the model as it is served, adds the report, samples where a temperature asks for it."""

    def __init__(self, models: Models, manager: Manager, name: str) -> None:
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
        attn = options.get("attn_implementation")
        with one_line_errors(source, f" with attention {attn}" if attn else ""):
            self.models = Models(force_model=source, **options)
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
