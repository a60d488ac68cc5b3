"""The site holds every file that a page links to, and one page of reference for each room.

The pages under docs/ link to files of the repository by relative paths, so that they can be read
there as they are. MkDocs only knows files under docs/. So these files join the site at their path
in the repository: Markdown as pages, source as highlighted pages, other files as they are.
README.md is the start page.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "muninn"
LINK = re.compile(r"(?<=\]\()[^)#\s:]+")
WORDS = "{members: false, show_root_heading: false, show_root_toc_entry: false}"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what pages link to, what that links to, and so on; then the reference."""
    waiting = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.is_relative_to(DOCS):
            files.append(added(path, config))
        if path.suffix == ".md":
            links = {target(path, link) for link in LINK.findall(path.read_text())}
            found = {linked for linked in links if linked is not None} - seen
            waiting += found
            seen |= found
    for room in ("root", *(init.parent.name for init in PACKAGE.glob("*/__init__.py"))):
        files.append(File.generated(config, f"api/{room}.md", content=reference(room)))


def target(page: Path, link: str) -> Path | None:
    """The file of the repository that a link of a page leads to; MkDocs judges other links."""
    path = (page.parent / link).resolve()
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def place(path: Path) -> str:
    """Where a file of the repository stands among the files of the site."""
    if path == ROOT / "README.md":
        return "index.md"
    name = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
    return f"{name}.md" if path.suffix == ".py" else name


def added(path: Path, config: MkDocsConfig) -> File:
    """A file from outside docs/; a source file becomes a page that shows it."""
    beside = InclusionLevel.NOT_IN_NAV
    if path.suffix != ".py":
        return File.generated(config, place(path), abs_src_path=str(path), inclusion=beside)
    title = path.relative_to(ROOT).as_posix()
    shown = f"# {title}\n\n````python\n{path.read_text()}````\n"
    return File.generated(config, place(path), content=shown, inclusion=beside)


def reference(room: str) -> str:
    """The page of a room: every file of it, with everything public that has a docstring."""
    files = PACKAGE.glob("*.py") if room == "root" else (PACKAGE / room).rglob("*.py")
    parts = sorted(path.relative_to(PACKAGE.parent).with_suffix("").parts for path in files)
    modules = "".join(f"::: {'.'.join(names)}\n\n" for names in parts if "__init__" not in names)
    name, title = ("muninn", "muninn, root") if room == "root" else [f"muninn.{room}"] * 2
    return f"# {title}\n\n::: {name}\n    options: {WORDS}\n\n## Files\n\n{modules}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let relative links point to where files stand on the site."""
    if page.parent is None:  # it stands alone in its tab: nothing to list at its side
        page.meta.setdefault("hide", ["navigation"])
    source = Path(page.file.abs_src_path or "generated")
    if page.file.src_uri != "index.md" and not source.is_relative_to(DOCS):
        page.meta.setdefault("search", {"boost": 0.2})  # guides answer before tables and reference

    def moved(found: re.Match[str]) -> str:
        path = target(source, found[0])
        return relpath(place(path), Path(page.file.src_uri).parent) if path else found[0]

    if source.is_file():
        markdown = LINK.sub(moved, markdown)
    # Long tables of studies are folded; GitHub reads Markdown inside, MkDocs when it is told to.
    return markdown.replace("<details>", "<details markdown>")
