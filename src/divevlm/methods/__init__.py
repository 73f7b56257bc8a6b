"""One file a method: what it reads, where it cuts, which candidates it keeps."""

from __future__ import annotations

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from divevlm.budget import Budget
from divevlm.methods.base import Method
from divevlm.registry import Registry

__all__ = ["METHODS", "Method", "method_of", "parse", "setting_value"]

KINDS = {bool: (bool,), int: (int,), float: (int, float), str: (str,), NoneType: (NoneType,)}
METHODS: Registry[type[Method]] = Registry("method")
METHODS.add("dive", "divevlm.methods.dive:DIVE")
METHODS.add("dive-no-language", "divevlm.methods.dive:NoLanguage")
METHODS.add("dive-no-visual", "divevlm.methods.dive:NoVisual")
METHODS.add("dive-no-update", "divevlm.methods.dive:NoUpdate")
METHODS.add("dive-plus", "divevlm.methods.dive_plus:DivePlus")
METHODS.add("fastv", "divevlm.methods.fastv:FastV")
METHODS.add("sparsevlm", "divevlm.methods.sparsevlm:SparseVLM")
METHODS.add("pdrop", "divevlm.methods.pdrop:PyramidDrop")
METHODS.add("visionzip", "divevlm.methods.visionzip:VisionZip")
METHODS.add("dart", "divevlm.methods.dart:DART")
METHODS.add("prunesid", "divevlm.methods.prunesid:PruneSID")
METHODS.add("mmtok", "divevlm.methods.mmtok:MMTok")
METHODS.add("cdpruner", "divevlm.methods.cdpruner:CDPruner")
METHODS.add("scope", "divevlm.methods.scope:SCOPE")
METHODS.add("hired", "divevlm.methods.hired:HiRED")
METHODS.add("holov", "divevlm.methods.holov:HoloV")
METHODS.add("tome", "divevlm.methods.tome:ToMe")
METHODS.add("resprune", "divevlm.methods.resprune:ResPrune")
METHODS.add("random", "divevlm.methods.random:Random")
METHODS.add("grid", "divevlm.methods.grid:Grid")
METHODS.add("farthest", "divevlm.methods.farthest:Farthest")
METHODS.add("pool", "divevlm.methods.pool:Pool")
METHODS.add("downsample", "divevlm.methods.downsample:Downsample")


def method_of(method: str | Method, keep: int | float | Budget | None, options: dict[str, Any]) -> Method:
    """A method by its name, which may bring settings ("dive:eta=0.5"), with further settings; or one that is ready."""
    if isinstance(method, Method):
        given = sorted(options) + ["keep"] * (keep is not None)
        if given:
            raise ValueError(
                f"options must be set on the {method.name} object itself, got {', '.join(given)} beside it"
            )
        return method
    if not isinstance(method, str):
        raise ValueError(f"method must be a name or a Method object, got {type(method).__name__}")
    name, settings = parse(method)
    twice = sorted(set(settings) & set(options))
    if twice:
        raise ValueError(f"options must be given once, got {', '.join(twice)} beside {method!r}")
    return _built(name, keep, settings | options)


def _built(name: str, keep: int | float | Budget | None, settings: dict[str, Any]) -> Method:
    kind = METHODS.get(name)
    allowed = sorted(f.name for f in fields(kind) if f.init and f.name != "keep")
    unknown = sorted(set(settings) - set(allowed))
    if unknown:
        raise ValueError(f"options of {name} must be among {', '.join(allowed)}, got {', '.join(unknown)}")
    for setting, value in settings.items():
        _check_kind(name, setting, value, get_type_hints(kind)[setting])
    if keep is None:
        raise ValueError(f"keep must be a count of at least 1 or a share in (0, 1], got None for {name}")
    return kind(keep=keep, **settings)


def _check_kind(method: str, option: str, value: Any, hint: Any) -> None:
    """Refuse a value that the field's type does not allow: numbers, words, yes or no, lists. The method checks the rest."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = tuple(str if get_origin(kind) is Literal else kind for kind in kinds)
    if any(kind not in KINDS and get_origin(kind) is not tuple for kind in kinds):
        return
    if not any(_is_a(value, kind) for kind in kinds):
        raise ValueError(f"{option} of {method} must be {' or '.join(map(_shown, kinds))}, got {value!r}")


def _is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is not tuple:
        return isinstance(value, KINDS[kind]) and (kind is bool or not isinstance(value, bool))
    first, *more = get_args(kind)
    if not isinstance(value, (list, tuple)) or (... not in more and len(value) != 1 + len(more)):
        return False
    return all(_is_a(one, first) for one in value)


def _shown(kind: Any) -> str:
    if get_origin(kind) is tuple:
        first, *more = get_args(kind)
        return f"a list of {'' if ... in more else f'{1 + len(more)} '}{first.__name__}s"
    return {str: "a word", NoneType: "None"}.get(kind) or str(kind.__name__)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A method with settings: "dive:layer=3:eta=0.5" -> ("dive", {"layer": 3, "eta": 0.5})"""
    name, *settings = text.split(":")
    if any(setting.count("=") != 1 for setting in settings):
        raise ValueError(f"method must be NAME or NAME:option=value:..., got {text!r}")
    return name, {key: setting_value(value) for key, value in (setting.split("=") for setting in settings)}


def setting_value(text: str) -> Any:
    """A setting as it is written in "dive:eta=0.5": True, False, None, a number, or a word."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
