"""Hooks of MkDocs: the README is the first page, and files that pages link to are part of the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md",
         "CONTRIBUTING.md": "contributing.md", "hack/cluster/README.md": "local-cluster.md"}  # fmt: skip
"""Pages that live outside ``docs``: path in the repository -> page of the site."""

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside, and every file that a page links to."""
    linked: set[Path] = set()
    for source, target in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=_moved(text, Path(source), Path(target), linked)))
    for file in list(files):
        if file.src_uri.endswith(".md") and file.src_uri not in PAGES.values():
            _moved(file.content_string, Path("docs") / file.src_uri, Path(file.src_uri), linked)
    for path in sorted(linked):
        files.append(File.generated(config, str(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of pages in ``docs`` as they are on the site."""
    source = page.file.src_uri
    return markdown if source in PAGES.values() else _moved(markdown, Path("docs") / source, Path(source), set())


def _moved(text: str, source: Path, target: Path, linked: set[Path]) -> str:
    """The text with its links as they are from its place on the site. linked: files of the repository, added to."""

    def replaced(found: re.Match[str]) -> str:
        link, anchor = found[1], found[2] or ""
        if "://" in link or link.startswith("mailto:"):
            return found[0]
        path = _normal(source.parent / link)
        if str(path) in PAGES:
            place = Path(PAGES[str(path)])
        elif path.parts[:1] == ("docs",):
            place = path.relative_to("docs")
        elif (ROOT / path).is_dir():
            place = _index(path, linked)
        elif (ROOT / path).is_file():
            linked.add(path)
            place = path
        else:
            return found[0]  # MkDocs tells of it
        return f"]({_up(target)}{place}{anchor})"

    return _LINK.sub(replaced, text)


def _index(folder: Path, linked: set[Path]) -> Path:
    """What a link to a folder leads to: the file that says most about it."""
    inner = sorted(path.relative_to(ROOT) for path in (ROOT / folder).iterdir() if path.is_file())
    named = [path for path in inner if path.name in ("values.yaml", "README.md")]
    chosen = (named or inner)[0]
    linked.add(chosen)
    return chosen


def _up(target: Path) -> str:
    return "../" * (len(target.parts) - 1)


def _normal(path: Path) -> Path:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return Path(*parts)
