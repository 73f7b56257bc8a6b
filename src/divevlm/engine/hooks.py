"""Follows every forward pass through a model: from what came in to the report of what was kept."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from divevlm.engine.caches import is_pruned
from divevlm.engine.entry import PIXELS, Entry, features_of
from divevlm.engine.features import Features
from divevlm.engine.passes import Pass
from divevlm.engine.patches import Hook, Patch, bound
from divevlm.engine.report import Report, report_of
from divevlm.engine.rows import Deepstack
from divevlm.engine.setup import COMPILE, Setup
from divevlm.engine.told import MASKS, Told, mask_of, told_by_generate, unlearnt
from divevlm.models.base import Family


class UnderWay(threading.local):
    """The calls that are under way in this thread, one inside the other: each level has what belongs to its own call last."""

    def __init__(self) -> None:
        self.generating: list[Told] = [Told()]  # by calls of generate()
        self.told: list[Told] = []  # the same, and by calls of the model
        self.arguments: list[dict[str, Any]] = []  # of the model without its head
        self.passes: list[Pass | None] = []  # of the language model
        self.expected: list[int] = []  # how many passes there must have been when the model's call is over
        self.count = 0  # passes so far
        self.report: Report | None = None  # of this thread's last prefill


class Hooks:
    """note: gets the report of every prefill."""

    def __init__(self, model: Any, family: Family, setup: Setup, note: Callable[[Report], None]) -> None:
        self.model, self.family, self.setup, self.note = model, family, setup, note
        self.features = Features(family, model, setup.method)
        self.entry = Entry(model, family, setup, self.features, self._warn)
        self.local = UnderWay()
        self._warned: set[str] = set()

    def attach(self, stack: ExitStack) -> None:
        stack.callback(self._forget)
        base = self.family.at(self.model, self.family.base)
        self.features.attach(stack, base)
        stack.callback(Patch(self.model, "generate", self._generate).undo)
        for module, enter, leave in (
            (self.model, self._enter_model, self._leave_model),
            (base, self._enter_base, self._leave_base),
            (self.setup.text, self._enter_text, self._leave_text),
        ):
            Hook(enter).before(module, stack)
            Hook(leave).behind(module, stack)
        for number, layer in enumerate(self.setup.layers):
            Hook(self._block(number)).before(layer, stack)

    def _forget(self) -> None:
        """Of all threads, but for the reports."""
        report, self.local = self.local.report, UnderWay()
        self.local.report = report

    # A pass, from the outside to the inside

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        local = self.local
        levels: tuple[list[Any], ...] = (local.generating, local.told, local.arguments, local.passes, local.expected)
        depths = [len(level) for level in levels]
        local.generating.append(told_by_generate(self.model, args, kwargs))
        try:
            return generate(*args, **kwargs)
        finally:  # also after an interrupt, which torch's hooks don't see
            for now in local.passes[depths[3] :]:
                if now is not None:
                    now.abandon()
            for level, depth in zip(levels, depths, strict=True):
                del level[depth:]
            self.features.forget()

    def _enter_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        local = self.local
        local.told.append(local.generating[-1])
        local.expected.append(0)
        given = bound(module, args, kwargs)
        masks: dict[str, Any] = {name: mask_of(name, given.pop(name)) for name in MASKS if given.get(name) is not None}
        if given.get("labels") is not None:
            kinds = self.family.token_ids(self.model.config)
            masks["labels"] = given["labels"] = unlearnt(given["labels"], given.get("input_ids"), kinds, self._warn)
        local.told[-1] = replace(local.told[-1], **masks)
        brings = bool(features_of(given)) or any(given.get(name) is not None for name in PIXELS.values())
        local.expected[-1] = local.count + int(brings or is_pruned(given.get("past_key_values")))
        return (), given

    def _leave_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        local = self.local
        del local.told[-1:]
        expected = local.expected.pop() if local.expected else 0
        if output is not None and local.count < expected:
            raise RuntimeError(f"model must not be compiled as a whole, got a pass in which no hook ran: {COMPILE}")

    def _enter_base(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = bound(module, args, kwargs)
        self.local.arguments.append(given)
        for kind, name in PIXELS.items():
            if given.get(name) is not None:
                self.features.expect(kind)

    def _leave_base(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        del self.local.arguments[-1:]

    def _enter_text(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        local = self.local
        local.count += 1
        local.passes.append(None)
        outer: dict[str, Any] = {}
        if local.arguments:  # they are of this pass, and of no other
            outer, local.arguments[-1] = local.arguments[-1], {}
        given = bound(module, args, kwargs)
        if outer.get("input_ids") is not None and outer["input_ids"].shape != _size(given):
            outer = {}  # of a call that was interrupted: this one is of the language model alone
        found = self.entry.read(outer, given, local.told[-1] if local.told else local.generating[-1])
        if found is None:
            return None
        deep = None  # taken over: the model would add them to the full sequence
        if given.get("deepstack_visual_embeds") is not None:
            deep = Deepstack(kwargs.pop("visual_pos_masks"), kwargs.pop("deepstack_visual_embeds"))
        local.passes[-1] = Pass(self.setup, *found, deep)
        return args, kwargs

    def _block(self, number: int) -> Callable[..., Any]:
        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            now = self.local.passes[-1] if self.local.passes else None
            if now is None:
                return None
            hidden = args[0] if args else kwargs.pop("hidden_states")
            return (now.enter(number, hidden, kwargs), *args[1:]), kwargs

        return enter

    def _leave_text(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        now = self.local.passes.pop() if self.local.passes else None
        if now is None:
            return output
        if output is None:  # an exception
            now.abandon()
            return output
        if len(now.stages) < len(self.setup.cuts):
            raise RuntimeError(
                f"model must not be compiled around its blocks, got a pass in which no hook ran: {COMPILE}"
            )
        now.finish()
        if now.prefill is not None:
            self.local.report = report_of(now)
            self.note(self.local.report)
        if now.stage.index is None:
            return output
        full = now.spread(output[0])
        if isinstance(output, tuple):
            return (full, *output[1:])
        output.last_hidden_state = full
        return output

    def _warn(self, text: str) -> None:
        """Once a session."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=2)


def _size(given: dict[str, Any]) -> torch.Size:
    """Rows and columns of a pass."""
    embeds = given.get("inputs_embeds")
    size: torch.Size = (given["input_ids"] if embeds is None else embeds).shape[:2]
    return size
