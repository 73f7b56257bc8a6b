"""A method attached to a live model, by forward hooks only."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from divevlm.core.rule import require
from divevlm.engine.call import Call, Conversation, Deepstack, Stage, left_aligned, take
from divevlm.engine.choose import choose
from divevlm.engine.masks import mask_kind, stage_mask
from divevlm.engine.report import Costs, Report
from divevlm.methods.base import Method
from divevlm.models import family_of
from divevlm.models.base import Layout, Visual

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
_ATTACHED: WeakKeyDictionary[nn.Module, Session] = WeakKeyDictionary()  # decoder layers -> who prunes them


class Session:
    """`with Session(model, method):` prunes every prefill of the model; outside of it the model is what it was."""

    def __init__(self, model: nn.Module, method: Method) -> None:
        self.family = family_of(model)
        self.model, self.method = model, method
        self.text = self.family.at(model, self.family.text)
        self.layers: nn.ModuleList = self.text.layers
        self.layer = self.family.default_layer if method.layer is None else method.layer
        self.cut = 0 if method.placement == "entry" else self.layer
        self._check()
        self.history: list[Report] = []
        self._handles: list[Any] = []
        self._conversations: WeakKeyDictionary[Any, Conversation] = WeakKeyDictionary()
        self._arguments: dict[str, Any] = {}  # of the model's forward
        self._encoded: dict[
            str, tuple[Callable[[], Any], list[Visual]]
        ] = {}  # features made last, what they show; by kind
        self._answer: Tensor | None = None
        self._call: Call | None = None

    @property
    def report(self) -> Report:
        """Of the last prefill."""
        require(
            bool(self.history),
            "report",
            "no prefill with visual tokens yet",
            "asked for after a forward pass or generate()",
        )
        return self.history[-1]

    def _check(self) -> None:
        config, last = self.text.config, len(self.layers) - 1
        require(self.layer <= last, "layer", self.layer, f"a block number from 0 to {last}")
        compiled = isinstance(self.model, torch._dynamo.OptimizedModule) or self.model._compiled_call_impl is not None
        require(not compiled, "model", "a compiled model", "attached to before torch.compile, or not compiled")
        kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        require(
            not kinds,
            "model",
            f"blocks of {', '.join(sorted(kinds))}",
            "one whose blocks all attend to the full sequence",
        )
        mrope = "mrope_section" in (getattr(config, "rope_parameters", None) or {})
        compact = self.method.positions == "compact"
        require(
            not (compact and mrope),
            "positions",
            "compact",
            f"'keep' for {self.family.name}, whose positions are a grid",
        )
        self.kind = mask_kind(config)

    # Life

    def attach(self) -> Session:
        other = _ATTACHED.get(self.layers)
        if other is not None:
            raise ValueError(f"model must be free, got one that {other.method.name} is attached to: detach that first")
        _ATTACHED[self.layers] = self
        base = self.family.at(self.model, self.family.base)
        self._handles = [
            *(
                _Watch(base, kind, self._note_features)
                for kind in ("image", "video")
                if hasattr(base, f"get_{kind}_features")
            ),
            self.model.register_forward_pre_hook(self._note_labels, with_kwargs=True),
            base.register_forward_pre_hook(self._note_arguments, with_kwargs=True),
            self.text.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.text.register_forward_hook(self._end, with_kwargs=True, always_call=True),
        ]
        for number, layer in enumerate(self.layers):
            if number >= self.cut or self.family.default_layer > 2:
                self._handles.append(layer.register_forward_pre_hook(self._block_hook(number), with_kwargs=True))
        return self

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if _ATTACHED.get(self.layers) is self:
            del _ATTACHED[self.layers]
        self._arguments, self._encoded, self._answer, self._call = {}, {}, None, None

    def __enter__(self) -> Session:
        return self if self._handles else self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.detach()

    # Hooks, in the order of a forward pass

    def _note_labels(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        labels = _bound(module, args, kwargs).get("labels")
        self._answer = None if labels is None else labels != -100

    def _note_arguments(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = _bound(module, args, kwargs)

    def _note_features(self, kind: str, given: dict[str, Any], features: Any) -> None:
        alive = ref(features) if isinstance(features, ModelOutput) else (lambda: None)
        self._encoded[kind] = alive, self.family.visuals(self.model, kind, given)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, self._arguments = self._arguments, {}
        mine = _bound(module, args, kwargs)
        embeds, mask, cache = mine.get("inputs_embeds"), mine.get("attention_mask"), mine.get("past_key_values")
        known = self._conversations.get(cache) if cache is not None else None
        layouts = self._layouts(given)
        if layouts is None and known is None:
            self._call = None
            return None
        if embeds is None:
            embeds = self.text.get_input_embeddings()(mine["input_ids"])
        require(
            mask is None or (isinstance(mask, Tensor) and mask.dim() == 2),
            "attention_mask", getattr(mask, "shape", type(mask).__name__), "two-dimensional [batch, length] under pruning",
        )  # fmt: skip
        if cache is not None:
            static = getattr(cache, "is_compileable", False)
            require(
                not static, "past_key_values", type(cache).__name__, "a dynamic cache: blocks hold different lengths"
            )
        training = self.text.training and getattr(self.text, "gradient_checkpointing", False)
        require(not training, "gradient_checkpointing", True, "off under pruning")
        batch, length = embeds.shape[:2]
        past = cache.get_seq_length() if cache is not None else 0
        ones = torch.ones(batch, past + length, dtype=torch.bool, device=embeds.device)
        present = ones if mask is None else mask.bool().to(embeds.device)
        require(present.shape == ones.shape, "attention_mask", tuple(present.shape), f"of shape {tuple(ones.shape)}")
        answer = None if self._answer is None else self._answer.to(embeds.device)
        self._call = Call(layouts, present[:, past:], present[:, :past] if past else None, answer, conversation=known)
        if mine.get("deepstack_visual_embeds") is not None:  # taken over: the model would add them to the full sequence
            self._call.deep = Deepstack(kwargs.pop("visual_pos_masks"), kwargs.pop("deepstack_visual_embeds"))
        return args, kwargs

    def _layouts(self, given: dict[str, Any]) -> list[Layout] | None:
        """None where this pass brings no visual token."""
        before = {kind: value for kind, value in (given.get("mm_encoder_outputs") or {}).items() if value is not None}
        now = [kind for kind, name in PIXELS.items() if given.get(name) is not None]
        if not before and not now:
            return None
        ids = given.get("input_ids")
        require(ids is not None, "input_ids", None, "given under pruning: they tell where the visual tokens are")
        for kind, features in before.items():
            known = kind in self._encoded and self._encoded[kind][0]() is features
            require(
                known, "mm_encoder_outputs", "features from elsewhere", "those made last while the method is attached"
            )
        visuals = {kind: self._encoded[kind][1] for kind in (*before, *now) if kind in self._encoded}
        return self.family.layouts(self.model, ids, visuals)  # type: ignore[arg-type]

    def _block_hook(self, number: int) -> Callable[..., Any]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = self._call
            if call is None:
                return None
            hidden = args[0] if args else kwargs.pop("hidden_states")
            index = call.stages[1].index if number > self.cut else None
            if call.deep is not None:
                hidden = call.deep.add(hidden, number - 1, index)
            if number == self.cut:
                hidden = self._enter(call, hidden, kwargs)
            return (hidden, *args[1:]), kwargs | (call.stages[1].arguments if number >= self.cut else {})

        return hook

    def _enter(self, call: Call, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """At the cut: choose who stays (a prefill), and prepare what the blocks from here on get."""
        cache = kwargs.get("past_key_values")
        talk = call.conversation
        if talk is None and cache is not None:
            talk = Conversation()
            if call.past is not None:
                talk.valid[1], talk.length = call.past, call.past.shape[1]
            self._conversations[cache] = call.conversation = talk
        past = talk.valid.get(1) if talk is not None else None
        stage = Stage(None, call.present)
        if call.layouts is not None:
            states = self._scout(hidden, kwargs, call, past) if self.method.placement == "entry" else hidden
            stay = choose(self.method, states, self._norm(), call)
            if not torch.equal(stay, call.present):
                stage.index, stage.valid = left_aligned(stay)
                hidden = take(hidden, stage.index)
        call.stages[1] = stage
        columns = stage.valid if past is None else torch.cat([past.to(stage.valid.device), stage.valid], dim=1)
        if talk is not None:
            talk.valid[1] = columns
            talk.length += call.present.shape[1]
            talk.pruned |= stage.index is not None
            if talk.pruned:
                _guard(cache, talk, pretend=self.cut == 0)
        if stage.index is not None or (talk is not None and talk.pruned):
            stage.arguments = self._replaced(stage, columns, hidden, kwargs)
        return hidden

    def _replaced(self, stage: Stage, columns: Tensor, hidden: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
        mask = stage_mask(self.kind, columns, stage.valid.shape[1], hidden.dtype)
        tables = kwargs["position_embeddings"]
        if self.method.positions == "compact":
            numbers = columns.long().cumsum(dim=1).sub_(1).clamp_min_(0)[:, -stage.valid.shape[1] :]
            tables = self.text.rotary_emb(hidden, position_ids=numbers.to(hidden.device))
        elif stage.index is not None:
            tables = tuple(take(table, stage.index) for table in tables)
        return {"attention_mask": mask, "position_embeddings": tables, "position_ids": None}

    def _scout(self, hidden: Tensor, kwargs: dict[str, Any], call: Call, past: Tensor | None) -> Tensor:
        """States of block `layer` over the whole sequence, leaving the cache alone."""
        columns = call.present if past is None else torch.cat([past, call.present], dim=1)
        kwargs = kwargs | {"attention_mask": stage_mask(self.kind, columns, hidden.shape[1], hidden.dtype)}
        cache = kwargs.get("past_key_values")
        kwargs["past_key_values"] = None if cache is None or past is None else _glimpse(cache, self.layer)
        with torch.no_grad():
            for number, layer in enumerate(self.layers[: self.layer]):
                hidden = layer.forward(hidden, **kwargs)
                if call.deep is not None:
                    hidden = call.deep.add(hidden, number, None)
        return hidden

    def _norm(self) -> Callable[[Tensor], Tensor]:
        if self.method.norm == "none":
            return lambda z: z
        norm: Any = self.text.norm if self.method.norm == "final" else self.layers[self.layer].input_layernorm
        return lambda z: norm.forward(z.to(norm.weight.device))

    def _end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Give the output its full length back: positions that were dropped hold zeros."""
        call, self._call = self._call, None
        if call is None or output is None or 1 not in call.stages:
            return output
        stage = call.stages[1]
        if call.layouts is not None:
            self.history.append(self._summary(call, stage))
        if stage.index is None:
            return output
        short = output[0]
        full = short.new_zeros(*call.present.shape, short.shape[-1])
        rows, columns = stage.valid.nonzero(as_tuple=True)
        full[rows, stage.index[rows, columns]] = short[rows, columns]
        if isinstance(output, tuple):
            return (full, *output[1:])
        output.last_hidden_state = full
        return output

    def _summary(self, call: Call, stage: Stage) -> Report:
        batch, length = call.present.shape
        past = 0 if call.past is None else call.past.shape[1]
        lengths = [length if n < self.cut else stage.valid.shape[1] for n in range(len(self.layers))]
        full = [length] * len(self.layers)
        size = next(self.text.parameters()).element_size()
        costs = Costs(self.text.config, self.layers, size)
        held = [past + n for n in lengths]
        if call.conversation is not None:
            after = call.conversation.valid[1].shape[1]
            held = [past + length if n < self.cut else after for n in range(len(self.layers))]
        return Report(
            method=self.method.name,
            budget=str(self.method.budget),
            samples=call.samples,
            tokens_per_layer=lengths,
            tokens_full=length,
            kv_bytes=costs.kv_bytes(batch, held),
            kv_bytes_full=costs.kv_bytes(batch, [past + length] * len(self.layers)),
            flops=costs.flops(batch, lengths),
            flops_full=costs.flops(batch, full),
            selection_ms=call.selection_seconds * 1e3,
        )


class _Watch:
    """Tells of every call of base.get_image_features or get_video_features. Generation encodes before it calls the model,
    and only these methods see the sizes of the images."""

    busy = False  # some families encode videos through the method for images: the outer call counts

    def __init__(self, base: nn.Module, kind: str, tell: Callable[[str, dict[str, Any], Any], None]) -> None:
        self.base, self.name = base, f"get_{kind}_features"
        method = getattr(base, self.name)

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if _Watch.busy:
                return method(*args, **kwargs)
            _Watch.busy = True
            try:
                features = method(*args, **kwargs)
            finally:
                _Watch.busy = False
            tell(kind, inspect.signature(method).bind_partial(*args, **kwargs).arguments, features)
            return features

        setattr(base, self.name, watched)

    def remove(self) -> None:
        delattr(self.base, self.name)


def _bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    if not args:
        return dict(kwargs)
    names = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    return {**names, **names.pop("kwargs", {})}


def _refuse_crop(*_: Any, **__: Any) -> None:
    raise ValueError(
        "cache must be left whole under pruning, got crop(): assisted and speculative decoding can't be used"
    )


def _guard(cache: Any, talk: Conversation, pretend: bool) -> None:
    """Refuse what a pruned cache can't do. A cut before block 0 shortens the block by which transformers measures a cache:
    then it is to tell the length that it would have unpruned."""

    def mask_sizes(query: Any, layer_idx: int = 0) -> tuple[int, int]:
        return talk.length + (query if isinstance(query, int) else query.shape[0]), 0

    cache.crop = _refuse_crop
    if pretend:
        cache.get_seq_length = lambda layer_idx=0: talk.length
        cache.get_mask_sizes = mask_sizes


def _glimpse(cache: Any, layers: int) -> Any:
    """A throw-away cache with what the first blocks hold."""
    from transformers import DynamicCache

    copy = DynamicCache()
    for number in range(layers):
        copy.update(cache.layers[number].keys, cache.layers[number].values, number)
    return copy
