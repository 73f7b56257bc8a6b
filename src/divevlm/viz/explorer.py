"""The explorer: one HTML file that shows how tokens were chosen, step by step, and needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from divevlm.methods import METHODS, Method, method_of
from divevlm.methods.dive import DIVE
from divevlm.viz.asking import Comparison
from divevlm.viz.pack import pack

SCRIPTS = ("data.js", "draw.js", "explain.js", "pointer.js", "answers.js", "course.js", "page.js")


def settings(
    methods: Sequence[str], keeps: Sequence[int | float], lams: Sequence[float] = (), etas: Sequence[float] = ()
) -> Iterator[tuple[str, Method]]:
    """What a page compares: every method at every budget; the first one, if it is DIVE, also with other lambdas and etas.

    Every DIVE run notes its steps: which budget is the largest below N is known only when N is.
    """
    for number, name in enumerate(methods):
        kind = METHODS.get(name)
        traced = {"trace": True} if issubclass(kind, DIVE) else {}
        changes: list[dict[str, Any]] = [{}]
        if number == 0 and kind is DIVE:
            changes += [{"lam": lam} for lam in lams if lam != DIVE.lam]
            changes += [{"eta": eta} for eta in etas if eta != DIVE.eta]
        for keep in keeps:
            for change in changes:
                suffix = "".join(f", {key} {value:g}" for key, value in change.items())
                yield f"{name} {keep}{suffix}", method_of(name, keep, change | traced)


def page(comparison: Comparison, gold: str | None = None) -> str:
    """The HTML text. gold: the right answer, where it is known.

    Whatever stands in the question, the answers or file names is shown as text, never run.
    """
    return page_of(pack(comparison, gold))


def page_of(data: dict[str, Any]) -> str:
    parts = files("divevlm.viz") / "page"
    style = (parts / "page.css").read_text(encoding="utf-8")
    script = "\n".join((parts / name).read_text(encoding="utf-8") for name in SCRIPTS)
    allowed = f"img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    rules = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":  # no tag and no comment can begin or end inside the data
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    html = (parts / "page.html").read_text(encoding="utf-8")
    for mark, part in (("@RULES@", rules), ("@STYLE@", style), ("@SCRIPT@", script), ("@DATA@", text)):
        before, after = html.split(mark)
        html = before + part + after
    return html


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
