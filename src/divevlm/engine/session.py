"""A method attached to a live model, by forward hooks only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from divevlm.core.rule import require
from divevlm.engine.caches import Conversation
from divevlm.engine.call import Call, Deepstack
from divevlm.engine.checks import check
from divevlm.engine.cut import Cutter
from divevlm.engine.masks import mask_kind
from divevlm.engine.report import Costs, Report
from divevlm.engine.thin import Thinner
from divevlm.engine.vision import Tower, joined, per_row
from divevlm.engine.watch import Gate, Watch, bound
from divevlm.methods.base import Method, Vision
from divevlm.models import family_of
from divevlm.models.base import Layout, Visual

PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
_ATTACHED: WeakKeyDictionary[nn.Module, Session] = WeakKeyDictionary()  # decoder layers -> who prunes them


@dataclass
class Encoded:
    """Images or videos as the tower made them."""

    features: Callable[[], Any]  # the features themselves, while they live
    visuals: list[Visual]
    vision: Vision | None  # what the tower thought of each token, where the method asks


class Session:
    """`with Session(model, method):` prunes every prefill of the model; outside of it the model is what it was."""

    def __init__(self, model: nn.Module, method: Method) -> None:
        self.family = family_of(model)
        self.model, self.method = model, method
        self.text = self.family.at(model, self.family.text)
        self.layers: nn.ModuleList = self.text.layers
        look = method.blocks(len(self.layers), self.family.default_layer)
        mrope = "mrope_section" in (getattr(self.text.config, "rope_parameters", None) or {})
        positions = method.positions or ("keep" if mrope else method.default_positions)
        check(model, self.family, self.text, method, look, mrope)
        self.cuts = (0,) if method.placement == "entry" else look
        self.cutter = Cutter(self.text, method, self.cuts, look[0], mask_kind(self.text.config), positions)
        self.tower = Tower(self.family, model, method.needs.vision) if method.needs.vision else None
        self.thinner = Thinner(self.family, model, method) if method.in_tower(self.family.plain) else None
        self.history: list[Report] = []
        self._handles: list[Any] = []
        self._conversations: WeakKeyDictionary[Any, Conversation] = WeakKeyDictionary()
        self._arguments: dict[str, Any] = {}  # of the model's forward
        self._encoded: dict[str, Encoded] = {}  # what was encoded last, by kind
        self._now: dict[str, Encoded] = {}  # those of this pass
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

    # Life

    def attach(self) -> Session:
        other = _ATTACHED.get(self.layers)
        if other is not None:
            raise ValueError(f"model must be free, got one that {other.method.name} is attached to: detach that first")
        _ATTACHED[self.layers] = self
        base = self.family.at(self.model, self.family.base)
        self._handles = [
            *(
                Watch(base, kind, self._forget_tower, self._note_features)
                for kind in ("image", "video")
                if hasattr(base, f"get_{kind}_features")
            ),
            *([] if self.tower is None else self.tower.attach()),
            *([] if self.thinner is None else self.thinner.attach()),
            Gate(self.model),
            self.model.register_forward_pre_hook(self._note_labels, with_kwargs=True),
            base.register_forward_pre_hook(self._note_arguments, with_kwargs=True),
            self.text.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.text.register_forward_hook(self._end, with_kwargs=True, always_call=True),
        ]
        for number, layer in enumerate(self.layers):
            if number >= self.cuts[0] - 1 or self.family.deepstack:
                self._handles.append(layer.register_forward_pre_hook(self._block_hook(number), with_kwargs=True))
        return self

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if _ATTACHED.get(self.layers) is self:
            del _ATTACHED[self.layers]
        self._arguments, self._encoded, self._now, self._answer, self._call = {}, {}, {}, None, None

    def __enter__(self) -> Session:
        return self if self._handles else self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.detach()

    # Hooks, in the order of a forward pass

    def _note_labels(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        labels = bound(module, args, kwargs).get("labels")
        self._answer = None if labels is None else labels != -100

    def _note_arguments(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = bound(module, args, kwargs)

    def _forget_tower(self) -> None:
        """What the tower did outside of an encoding, or in one that failed, belongs to no visual token."""
        if self.tower is not None:
            self.tower.forget()

    def _note_features(self, kind: str, given: dict[str, Any], features: Any) -> None:
        alive = ref(features) if isinstance(features, ModelOutput) else (lambda: None)
        vision = None if self.tower is None else self.tower.tokens(kind, given)
        if self.thinner is not None:
            vision = self.thinner.tokens()
        self._encoded[kind] = Encoded(alive, self.family.visuals(self.model, kind, given), vision)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, self._arguments = self._arguments, {}
        mine = bound(module, args, kwargs)
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
        if layouts is not None:
            self._gather(given["input_ids"], embeds, self._call)
        if mine.get("deepstack_visual_embeds") is not None:  # taken over: the model would add them to the full sequence
            self._call.deep = Deepstack(kwargs.pop("visual_pos_masks"), kwargs.pop("deepstack_visual_embeds"))
        return args, kwargs

    def _gather(self, ids: Tensor, embeds: Tensor, call: Call) -> None:
        """What a method may ask to see of this prefill, before its first block."""
        call.ids = ids
        if self.method.needs.embeds:
            call.embeds = embeds
        parts = {kind: made.vision for kind, made in self._now.items() if made.vision is not None}
        if parts:
            call.vision = joined(parts)
            sizes = {kind: len(part.tile) for kind, part in parts.items()}
            call.vision_rows = per_row(sizes, ids.cpu(), self.family.token_ids(self.model.config))

    def _layouts(self, given: dict[str, Any]) -> list[Layout] | None:
        """None where this pass brings no visual token."""
        before = {kind: value for kind, value in (given.get("mm_encoder_outputs") or {}).items() if value is not None}
        now = [kind for kind, name in PIXELS.items() if given.get(name) is not None]
        ids = given.get("input_ids")
        if not before and not now:
            if ids is not None and ids.shape[1] > 1:
                strays = [
                    kind for kind, token in self.family.token_ids(self.model.config).items() if (ids == token).any()
                ]
                require(
                    not strays,
                    "input_ids",
                    f"visual tokens without their {' and '.join(strays)}",
                    "given with the pixels",
                )
            return None
        require(ids is not None, "input_ids", None, "given under pruning: they tell where the visual tokens are")
        for kind, features in before.items():
            known = kind in self._encoded and self._encoded[kind].features() is features
            require(
                known, "mm_encoder_outputs", "features from elsewhere", "those made last while the method is attached"
            )
        self._now = {kind: self._encoded[kind] for kind in (*before, *now) if kind in self._encoded}
        return self.family.layouts(self.model, ids, {kind: made.visuals for kind, made in self._now.items()})  # type: ignore[arg-type]

    def _block_hook(self, number: int) -> Callable[..., Any]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = self._call
            if call is None:
                return None
            hidden = args[0] if args else kwargs.pop("hidden_states")
            if call.deep is not None:
                hidden = call.deep.add(hidden, number - 1, call.index)
            if number in self.cuts:
                if not call.stages:
                    self._remember(call, kwargs.get("past_key_values"))
                hidden = self.cutter.enter(call, hidden, kwargs)
            kwargs |= call.stages[-1].arguments if call.stages else {}
            if call.layouts is not None:
                self.cutter.note(call, number, hidden, kwargs["position_embeddings"])
            return (hidden, *args[1:]), kwargs

        return hook

    def _remember(self, call: Call, cache: Any) -> None:
        """A conversation belongs to its cache. What came before this session counts as it is."""
        call.cache = cache
        if call.conversation is None and cache is not None:
            call.conversation = Conversation(length=0 if call.past is None else call.past.shape[1])
            self._conversations[cache] = call.conversation
        if call.conversation is not None:
            call.conversation.length += call.present.shape[1]

    def _end(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Give the output its full length back: positions that were dropped hold zeros."""
        call, self._call = self._call, None
        if call is None or output is None or len(call.stages) < len(self.cuts):
            return output
        if call.layouts is not None:
            self.history.append(self._summary(call))
        stage = call.stages[-1]
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

    def _summary(self, call: Call) -> Report:
        batch, length = call.present.shape
        blocks = range(len(self.layers))
        past = 0 if call.past is None else call.past.shape[1]
        stage_of = [sum(cut <= block for cut in self.cuts) for block in blocks]
        lengths = [length, *(stage.valid.shape[1] for stage in call.stages)]
        talk = call.conversation
        held = [past + length, *(talk.valid[i].shape[1] if talk else lengths[i + 1] for i in range(len(self.cuts)))]
        costs = Costs(self.text.config, self.layers, next(self.text.parameters()).element_size())
        tokens = [lengths[stage] for stage in stage_of]
        return Report(
            method=self.method.name,
            budget=str(self.method.budget),
            samples=call.samples,
            tokens_per_layer=tokens,
            tokens_full=length,
            kv_bytes=costs.kv_bytes(batch, [held[stage] for stage in stage_of]),
            kv_bytes_full=costs.kv_bytes(batch, [past + length for _ in blocks]),
            flops=costs.flops(batch, tokens),
            flops_full=costs.flops(batch, [length for _ in blocks]),
            selection_ms=call.selection_seconds * 1e3,
        )
