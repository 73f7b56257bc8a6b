"""A method attached to a live model."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from divevlm.checks import require, whole
from divevlm.engine.hooks import Hooks
from divevlm.engine.report import Report
from divevlm.engine.setup import setup_of
from divevlm.methods.base import Method
from divevlm.models import family_of

_ATTACHED: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # decoder layers -> the method that prunes them


class Session:
    """`with Session(model, method):` prunes every prefill of the model; outside of it the model is what it was.

    Several threads may call the model at once: what belongs to a pass is not kept here. history: how many reports are.
    """

    def __init__(self, model: nn.Module, method: Method, history: int = 1) -> None:
        whole("history", history, 1)
        model = unwrapped(model)
        self.family = family_of(model)
        self.model, self.method = model, method
        self.setup = setup_of(model, self.family, method)
        self.text, self.layers, self.cuts = self.setup.text, self.setup.layers, self.setup.cuts
        self.history: deque[Report] = deque(maxlen=history)  # of all threads
        self._hooks = Hooks(model, self.family, self.setup, self.history.append)
        self._undo: ExitStack | None = None
        self._entered: list[bool] = []  # for each `with` that is open: whether it attached the session

    @property
    def report(self) -> Report:
        """Of the last prefill: of this thread's own, if it had one."""
        report = self._hooks.local.report or (self.history[-1] if self.history else None)
        if report is None:
            raise ValueError("no report yet: it is there after the first forward pass or generate() with an image")
        return report

    @property
    def attached(self) -> bool:
        return self._undo is not None

    def attach(self) -> Session:
        other = _ATTACHED.get(self.layers)
        if other is not None:
            raise ValueError(f"model must be free, got one that {other} is attached to: detach that first")
        with ExitStack() as stack:  # all or nothing
            _ATTACHED[self.layers] = self.method.name
            stack.callback(_ATTACHED.pop, self.layers, None)
            self._hooks.attach(stack)
            self._undo = stack.pop_all()
        return self

    def detach(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()

    def __enter__(self) -> Session:
        mine = not self.attached
        if mine:
            self.attach()
        self._entered.append(mine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._entered.pop():
            self.detach()


def unwrapped(model: Any) -> Any:
    """The model inside a PEFT wrapper; the wrapper calls it, so pruning works for both."""
    if not hasattr(model, "get_base_model"):
        return model
    adapters = getattr(model, "peft_config", {}).values()
    learnt = [str(adapter.peft_type) for adapter in adapters if getattr(adapter, "is_prompt_learning", False)]
    require(not learnt, "model", f"prompt learning by {', '.join(learnt)}", "a PEFT model without virtual tokens")
    return model.get_base_model()
