"""For the site: files of the repository that pages link to (`../results/...`) are part of it, under `repository/`."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(\.\./([^)#\s]+)")
BACK = re.compile(r"\]\((?:\.\./)+docs/")  # from such a file to a page


def on_files(files, config):
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    seen = set()
    while waiting:
        page = waiting.pop()
        for link in re.findall(r"\]\(([^)#\s:]+)", page.read_text()):
            path = (page.parent / link).resolve()
            if (
                path in seen
                or not path.is_file()
                or not path.is_relative_to(ROOT)
                or path.is_relative_to(ROOT / "docs")
            ):
                continue
            seen.add(path)
            files.append(File.generated(config, f"repository/{path.relative_to(ROOT)}", abs_src_path=str(path)))
            if path.suffix == ".md":
                waiting.append(path)
    return files


COLUMNS = re.compile(r"<p>((?:(?!</p>)[^\n])*\S {2,}\S)")


def on_page_content(html, page, **_):
    """Paragraphs of docstrings that tell one setting a line, in columns."""
    return COLUMNS.sub(r'<p class="columns">\1', html) if page.file.src_uri == "reference.md" else html


def on_page_markdown(markdown, page, **_):
    if not page.file.src_uri.startswith("repository/"):
        return LINK.sub(r"](repository/\1", markdown)
    return BACK.sub("](" + "../" * page.file.src_uri.count("/"), markdown)
