"""Hooks that follow every forward pass through a model, from its arguments to the report of what was kept."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from divevlm.engine import flash
from divevlm.engine.caches import is_pruned
from divevlm.engine.features import Features
from divevlm.engine.passes import Pass
from divevlm.engine.patches import Hook, Patch, bound
from divevlm.engine.prefill import PIXELS, Reader, encoder_outputs, has_pixels
from divevlm.engine.prompt import MASKS, PromptMarks, checked_mask, prompt_of_generate, text_labels
from divevlm.engine.report import Report, report_of
from divevlm.engine.sequence import Deepstack
from divevlm.engine.setup import COMPILE, Setup
from divevlm.models.base import Family


@dataclass
class Calls:
    """The calls under way in a thread, each list from the outermost to the innermost."""

    prompts: list[PromptMarks] = field(default_factory=list)  # of the model
    expected: list[int] = field(default_factory=list)  # passes there must have been when the model's call is over
    arguments: list[dict[str, Any]] = field(default_factory=list)  # of the model without its head
    passes: list[Pass | None] = field(default_factory=list)  # of the language model


class UnderWay(threading.local):
    """What is under way in this thread."""

    def __init__(self) -> None:
        self.generated = PromptMarks()  # of the innermost call of generate()
        self.calls = Calls()  # inside of it
        self.count = 0  # passes so far
        self.report: Report | None = None  # of this thread's last prefill


class Hooks:
    """note: gets the report of every prefill."""

    def __init__(self, model: Any, family: Family, setup: Setup, note: Callable[[Report], None]) -> None:
        self.model, self.family, self.setup, self.note = model, family, setup, note
        self.features = Features(family, model, setup.method)
        self.reader = Reader(model, family, setup, self.features, self._warn)
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
        if self.setup.method.bias_strength:
            flash.attach(self.setup.layers, stack)

    def _forget(self) -> None:
        """Of all threads, but for the reports."""
        report, self.local = self.local.report, UnderWay()
        self.local.report = report

    # A pass, from the outside to the inside

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        local = self.local
        outside = local.generated, local.calls
        local.generated, local.calls = prompt_of_generate(self.model, args, kwargs), Calls()
        try:
            return generate(*args, **kwargs)
        finally:  # also after an interrupt, which torch's hooks don't see
            for now in local.calls.passes:
                if now is not None:
                    now.abandon()
            local.generated, local.calls = outside
            self.features.forget()

    def _enter_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = self.local.calls
        calls.prompts.append(self.local.generated)
        calls.expected.append(0)
        given = bound(module, args, kwargs)
        masks: dict[str, Any] = {
            name: checked_mask(name, given.pop(name)) for name in MASKS if given.get(name) is not None
        }
        if given.get("labels") is not None:
            kinds = self.family.token_ids(self.model.config)
            masks["labels"] = given["labels"] = text_labels(given["labels"], given.get("input_ids"), kinds, self._warn)
        calls.prompts[-1] = replace(calls.prompts[-1], **masks)
        brings = bool(encoder_outputs(given)) or has_pixels(given)
        calls.expected[-1] = self.local.count + int(brings or is_pruned(given.get("past_key_values")))
        return (), given

    def _leave_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls = self.local.calls
        del calls.prompts[-1:]
        expected = calls.expected.pop() if calls.expected else 0
        if output is not None and self.local.count < expected:
            raise RuntimeError(f"model must not be compiled as a whole, got a pass in which no hook ran: {COMPILE}")

    def _enter_base(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = bound(module, args, kwargs)
        self.local.calls.arguments.append(given)
        for kind, name in PIXELS.items():
            if given.get(name) is not None:
                self.features.expect(kind)

    def _leave_base(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        del self.local.calls.arguments[-1:]

    def _enter_text(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        local, calls = self.local, self.local.calls
        local.count += 1
        calls.passes.append(None)
        outer: dict[str, Any] = {}
        if calls.arguments:  # they are of this pass, and of no other
            outer, calls.arguments[-1] = calls.arguments[-1], {}
        given = bound(module, args, kwargs)
        brought = self.reader.read(outer, given, calls.prompts[-1] if calls.prompts else local.generated)
        if brought is None:
            return None
        deep = None  # taken over: the model would add them to the full sequence
        if given.get("deepstack_visual_embeds") is not None:
            deep = Deepstack(kwargs.pop("visual_pos_masks"), kwargs.pop("deepstack_visual_embeds"))
        calls.passes[-1] = Pass(self.setup, *brought, deep)
        return args, kwargs

    def _block(self, number: int) -> Callable[..., Any]:
        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            passes = self.local.calls.passes
            if not passes or passes[-1] is None:
                return None
            hidden = args[0] if args else kwargs.pop("hidden_states")
            return (passes[-1].enter(number, hidden, kwargs), *args[1:]), kwargs

        return enter

    def _leave_text(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        passes = self.local.calls.passes
        now = passes.pop() if passes else None
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
