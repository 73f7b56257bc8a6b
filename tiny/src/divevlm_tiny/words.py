"""The words of the little world: what can be drawn, asked and answered."""

from __future__ import annotations

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "ring", "heart")
SIGN = "sign"
COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "white", "black")
PATTERNS = ("solid", "striped", "dotted")
DIGITS = tuple("0123456789")
SIGN_WORDS = tuple(  # printed in capitals
    "cat dog sun car bus cup hat key box map pen tree fish bird moon lamp ship road milk king".split()  # noqa: SIM905
)
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in (*SHAPES, SIGN)}
TASKS = ("existence", "attribute", "relation", "counting", "reading", "position", "comparison", "detail")
UNSEEN = frozenset(zip(COLORS, SHAPES, strict=True))  # colour-shape pairs that only the shift split shows

GRAMMAR = (  # noqa: SIM905
    "is there a an the what color shape pattern does have are how many objects object in on which where side of say "
    "left right above below larger smaller than or small top bottom yes no number word picture it user assistant"
).split()
CLIP_WORDS = ("moved", "move", "direction", "did", "came", "first", "up", "down")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def vocabulary(*visual: str, clips: bool = False) -> list[str]:
    """Every token, in the order of its number; `visual` are the placeholders of the model (`<image>`)."""
    words = [*SHAPES, SIGN, *COLORS, *PATTERNS, *DIGITS, *SIGN_WORDS, *PLURALS.values(), *GRAMMAR, "?", ":", ",", "."]
    return [*SPECIAL, *visual, *dict.fromkeys([*words, *(CLIP_WORDS if clips else [])])]
