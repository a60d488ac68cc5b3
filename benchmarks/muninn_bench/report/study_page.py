"""A study's page in Markdown: a template with its words, tables and pictures filled in.

A template stands beside the study's code as ``page.md``. Its paragraphs hold words in braces; one
that reads ``table: NAME`` (or a pattern, ``NAME_*``) is a place for tables, one that begins with
``picture: NAME`` is a place for a picture, and the rest of that paragraph is its caption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import Any

from muninn.files import write_whole
from muninn_bench.report import style
from muninn_bench.report.table import Row, Table

Draw = Callable[[Any, Path], bool]


def table_of(make: Callable[..., Iterator[Row | str]], *given: Any, name: str = "") -> Table:
    """The rows that a generator yields, under its own name or another; text becomes notes."""
    found = list(make(*given))
    rows = [row for row in found if isinstance(row, dict)]
    notes = [note for note in found if isinstance(note, str)]
    return Table(name or make.__name__, rows, notes)


def picture(
    height: float, panels: Callable[[Any], Sequence[Any]] = lambda source: [None]
) -> Callable[[Callable[[Any, Any, Any], None]], Draw]:
    """Make a picture of a function ``make(source, axis, panel)`` that draws one panel.

    The picture writes ``NAME.png`` into a folder, ``height`` inches high, and says whether it did:
    it is left out where a source has no panels, or nothing was drawn in them.
    """

    def decorate(make: Callable[[Any, Any, Any], None]) -> Draw:
        @wraps(make)
        def draw(source: Any, out: Path) -> bool:
            shown = panels(source)
            if not shown:
                return False
            # About as wide as a README.
            figure, (axes,) = style.subplots(1, len(shown), 9.0, height, squeeze=False)
            for axis, panel in zip(axes, shown, strict=True):
                axis.grid(alpha=0.25, linewidth=0.6)
                make(source, axis, panel)
                if axis is not axes[0] and axis.get_ylabel() == axes[0].get_ylabel():
                    axis.set_ylabel("")
            if not any(axis.collections or axis.get_legend_handles_labels()[0] for axis in axes):
                return False
            style.outside_legend(figure)
            style.save(figure, out / f"{make.__name__}.png")
            return True

        return draw

    return decorate


def write_page(
    out: Path,
    template: Path,
    words: Mapping[str, Any],
    tables: Iterable[Table] = (),
    pictures: Mapping[str, Callable[[Path], bool]] | None = None,
) -> list[str]:
    """Write ``README.md`` with its tables, as CSV files too, and pictures; names of the files."""
    parts, written = list[str](), ["README.md"]
    for paragraph in template.read_text().strip().split("\n\n"):
        first, *rest = paragraph.splitlines()
        kind, _, name = first.partition(": ")
        if kind == "table":
            for own in (one for one in tables if fnmatch(one.name, name)):
                parts += [own.markdown() if own.rows else "(not measured)", *own.notes]
                if own.rows:
                    written.append(own.write(out).name)
                    parts.append(f"Numbers: [{written[-1]}]({written[-1]})")
        elif kind == "picture":
            if pictures and pictures[name](out):
                written.append(f"{name}.png")
                caption = " ".join(rest).format(**words)
                parts += [f"![{caption}]({name}.png)", f"*{caption}*"]
        else:
            joined = "\n" if first.startswith("- ") else " "
            parts.append(joined.join((first, *rest)).format(**words))
    write_whole(out / "README.md", "\n\n".join(parts) + "\n")
    return written
