"""Who imports whom, read from the sources; `python tests/imports.py` draws it into docs/pictures/imports.svg."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/pictures/imports.svg"
LIBRARY = ROOT / "src/divevlm"
PACKAGES = {"divevlm": LIBRARY, "divevlm_tiny": ROOT / "tiny/src/divevlm_tiny", "training": ROOT / "training"}
LAYERS = (  # a folder imports only from those above it in this list
    ("checks",),
    ("budget", "files", "media", "processors", "registry", "terminal"),
    ("core",),
    ("methods", "models"),
    ("engine",),
    ("loading",),
    ("planning", "prompts", "timing"),
    ("viz",),
    ("experiments",),
    ("serve",),
    ("bench",),
    ("batch",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ROWS = (  # of the picture
    ("", "cli", "training"),
    ("batch", "bench", ""),
    ("serve", "", ""),
    ("", "experiments", ""),
    ("viz", "", ""),
    ("engine", "loading planning prompts timing", ""),
    ("methods", "models", "divevlm_tiny"),
    ("core", "", ""),
    ("", "budget checks files media processors registry terminal", ""),
)
Edges = dict[tuple[str, str], list[str]]  # (importer, imported) -> where, as "file:line"


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a module imports, also inside functions and for type checkers only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names)


def node_of(name: str, public: dict[str, str]) -> str:
    """What a dotted name belongs to: a folder or file of the library, or a package. public: name in `divevlm` -> its home."""
    package, *rest = name.split(".")
    if package != "divevlm" or not rest:
        return package
    if rest[0] in public:
        return node_of(public[rest[0]], {})
    inside = LIBRARY / rest[0]
    return rest[0] if inside.is_dir() or inside.with_suffix(".py").exists() else package


def edges() -> Edges:
    """Between folders and files of the library, the packages beside it, and all other packages."""
    front = (LIBRARY / "__init__.py").read_text()  # offers names from everywhere: not a node itself
    public = {name.rsplit(".", 1)[1]: name for _, name in imported(front) if name.startswith("divevlm.")}
    places: Edges = defaultdict(list)
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            importer = path.relative_to(folder).parts[0].removesuffix(".py") if package == "divevlm" else package
            for line, name in imported(path.read_text()):
                target = node_of(name, public)
                if importer not in ("__init__", target) and target != "divevlm":
                    places[importer, target].append(f"{path.relative_to(ROOT)}:{line}")
    return dict(places)


def reduced(arrows: set[tuple[Any, Any]]) -> set[tuple[Any, Any]]:
    """Without arrows that a longer way makes needless."""
    after = defaultdict(set)
    for one, other in arrows:
        after[one].add(other)

    def reach(name: Any) -> set[Any]:
        return after[name].union(*(reach(other) for other in after[name]))

    return {(one, other) for one, other in arrows if not any(other in reach(via) for via in after[one] - {other})}


def draw() -> str:
    """The graph as SVG: an arrow leads from importer to imported; the lowest row, which all may import, has none."""
    width, row, height = 720, 70, 34
    there = {path.stem for path in LIBRARY.iterdir()} | set(PACKAGES)
    boxes: dict[str, tuple[int, int, str]] = {}  # name -> centre, text of its box
    for number, names in enumerate(ROWS):
        for i, together in enumerate(names):
            text = "  ".join(name for name in together.split() if name in there)
            boxes |= dict.fromkeys(text.split(), (width * (2 * i + 1) // 6, 40 + row * number, text))
    arrows = {(boxes[one], boxes[other]) for one, other in edges() if {one, other} <= set(boxes)}
    lowest = 40 + row * (len(ROWS) - 1)
    lines = []
    for (x, y, _), (to_x, to_y, _) in sorted(reduced({(a, b) for a, b in arrows if a != b and b[1] < lowest})):
        ends = f'x1="{x}" y1="{y + height // 2}" x2="{to_x}" y2="{to_y - height // 2 - 7}"'
        lines.append(f'<line {ends} stroke="#777" stroke-width="1.4" marker-end="url(#tip)"/>')
    for (x, y, text), name in {box: name for name, box in boxes.items()}.items():
        fill = "#fff3d6" if name in PACKAGES else "#dcebfa" if RANK[name] < RANK["viz"] else "#eeeeee"
        lines.append(_box(x, y, max(120, 9 * len(text)), height, fill, text))
    tip = (
        '<marker id="tip" markerWidth="8" markerHeight="8" refX="1" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker>'
    )
    size = f'width="{width}" height="{lowest + 40}" viewBox="0 0 {width} {lowest + 40}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="14">'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, f"<defs>{tip}</defs>", ground, *lines, "</svg>\n"])


def _box(x: int, y: int, width: int, height: int, fill: str, text: str) -> str:
    corner = f'x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="6"'
    return (
        f'<rect {corner} fill="{fill}" stroke="#555"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" xml:space="preserve">{text}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw())
