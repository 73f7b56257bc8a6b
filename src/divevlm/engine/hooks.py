"""Follows every forward pass through a model: from what came in to the report of what was kept."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import nn

from divevlm.engine.caches import is_pruned
from divevlm.engine.entry import PIXELS, Entry, features_of
from divevlm.engine.features import Features
from divevlm.engine.passes import Pass
from divevlm.engine.patches import Hook, Patch, bound
from divevlm.engine.report import Report, report_of
from divevlm.engine.rows import Deepstack
from divevlm.engine.setup import Setup
from divevlm.engine.told import MASKS, Told, mask_of, told_by_generate, unlearnt
from divevlm.models.base import Family

COMPILE = "compile the decoder layers instead (for layer in layers: layer.compile(dynamic=True))"


class Local(threading.local):
    """What belongs to the pass that is under way in this thread."""

    def __init__(self) -> None:
        self.generating = Told()  # by the call of generate()
        self.told = Told()  # the same, and by the call of the model
        self.arguments: dict[str, Any] = {}  # of the model without its head
        self.passes = 0  # of the language model, so far
        self.expected = 0  # how many there must be when the model's call is over
        self.now: Pass | None = None
        self.report: Report | None = None  # of this thread's last prefill


class Hooks:
    """note: gets the report of every prefill."""

    def __init__(self, model: Any, family: Family, setup: Setup, note: Callable[[Report], None]) -> None:
        self.model, self.family, self.setup, self.note = model, family, setup, note
        self.features = Features(family, model, setup.method)
        self.entry = Entry(model, family, setup, self.features, self._warn)
        self.local = Local()
        self._warned: set[str] = set()

    def attach(self, stack: ExitStack) -> None:
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

    # A pass, from the outside to the inside

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        local, before = self.local, self.local.generating
        local.generating = local.told = told_by_generate(self.model, args, kwargs)
        try:
            return generate(*args, **kwargs)
        finally:
            local.generating = local.told = before

    def _enter_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        local, given = self.local, bound(module.forward, args, kwargs)
        masks: dict[str, Any] = {name: mask_of(name, given.pop(name)) for name in MASKS if given.get(name) is not None}
        if given.get("labels") is not None and given.get("input_ids") is not None:
            given["labels"] = unlearnt(
                given["labels"], given["input_ids"], self.family.token_ids(self.model.config), self._warn
            )
        local.told = replace(local.generating, labels=given.get("labels"), **masks)
        brings = bool(features_of(given)) or any(given.get(name) is not None for name in PIXELS.values())
        local.expected = local.passes + int(brings or is_pruned(given.get("past_key_values")))
        return (), given

    def _leave_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        local = self.local
        local.told = local.generating
        if output is not None and local.passes < local.expected:
            raise RuntimeError(f"model must not be compiled as a whole, got a pass in which no hook ran: {COMPILE}")

    def _enter_base(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.local.arguments = given = bound(module.forward, args, kwargs)
        for kind, name in PIXELS.items():
            if given.get(name) is not None:
                self.features.expect(kind)

    def _leave_base(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.local.arguments = {}

    def _enter_text(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        local, given = self.local, bound(module.forward, args, kwargs)
        local.passes += 1
        local.now = None
        found = self.entry.read(local.arguments, given, local.told)
        if found is None:
            return None
        deep = None
        if (
            given.get("deepstack_visual_embeds") is not None
        ):  # taken over: the model would add them to the full sequence
            deep = Deepstack(kwargs.pop("visual_pos_masks"), kwargs.pop("deepstack_visual_embeds"))
        local.now = Pass(self.setup, *found, deep)
        return args, kwargs

    def _block(self, number: int) -> Callable[..., Any]:
        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            now = self.local.now
            if now is None:
                return None
            hidden = args[0] if args else kwargs.pop("hidden_states")
            return (now.enter(number, hidden, kwargs), *args[1:]), kwargs

        return enter

    def _leave_text(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        now, self.local.now = self.local.now, None
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
