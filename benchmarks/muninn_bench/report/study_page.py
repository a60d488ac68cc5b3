"""A study's page in Markdown: tables and pictures made by functions whose docstrings explain them.

What is in braces in a name, title or docstring is filled in from ``source.words()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muninn_bench.report import style
from muninn_bench.report.table import Row, Table

Maker = Callable[..., Iterator[Row | str]]


def told(text: str | None, source: Any, **given: Any) -> str:
    """A text on one line, with the source's words and those given filled in."""
    return " ".join((text or "").split()).format(**{**source.words(), **given})


def table(name: str, title: str, *, long: bool = False) -> Callable[[Maker], Callable[..., Table]]:
    """Make a table of a generator of rows; text that it yields becomes a note below."""

    def decorate(make: Maker) -> Callable[..., Table]:
        def made(source: Any, **given: Any) -> Table:
            found = list(make(source, **given))
            rows = [row for row in found if isinstance(row, dict)]
            notes = [note for note in found if isinstance(note, str)]
            heads = [told(text, source, **given) for text in (name, title, make.__doc__)]
            return Table(heads[0], heads[1], heads[2], rows, notes, long)

        return made

    return decorate


@dataclass(frozen=True)
class Picture:
    """A picture below a table; ``make(source, axis, panel)`` draws one of its panels."""

    below: str  # the table's name
    height: float  # inches
    panels: Callable[[Any], Sequence[Any]]  # of a source; none if nothing can be drawn
    make: Callable[[Any, Any, Any], None]

    def draw(self, source: Any, out: Path) -> tuple[str, str] | None:
        """Write the picture: its file's name and caption; None where nothing was drawn."""
        shown = self.panels(source)
        if not shown:
            return None
        # About as wide as a README.
        figure, (axes,) = style.subplots(1, len(shown), 9.0, self.height, squeeze=False)
        for axis, panel in zip(axes, shown, strict=True):
            axis.grid(alpha=0.25, linewidth=0.6)
            self.make(source, axis, panel)
            if axis is not axes[0] and axis.get_ylabel() == axes[0].get_ylabel():
                axis.set_ylabel("")
        if not any(axis.collections or axis.get_legend_handles_labels()[0] for axis in axes):
            return None
        style.outside_legend(figure)
        path = style.save(figure, out / f"{self.make.__name__}.png")
        return path.name, told(self.make.__doc__, source)


def picture(
    below: str, height: float, panels: Callable[[Any], Sequence[Any]] = lambda source: [None]
) -> Callable[[Callable[[Any, Any, Any], None]], Picture]:
    """Make a picture of a function that draws one panel."""
    return lambda make: Picture(below, height, panels, make)


def write_page(
    out: Path,
    source: Any,
    heading: Sequence[str],
    tables: Iterable[Table],
    pictures: Iterable[Picture],
) -> list[str]:
    """Write ``README.md`` with its tables, as CSV files too, and pictures; names of the files."""
    parts, written = list(heading), ["README.md"]
    below: dict[str, list[Picture]] = {}
    for one in pictures:
        below.setdefault(one.below, []).append(one)
    for own in tables:
        body = own.markdown() if own.rows else "(not measured)"
        if own.long and own.rows:
            body = f"<details><summary>{len(own.rows)} rows</summary>\n\n{body}\n\n</details>"
        parts += [f"## {own.title}", own.reading, body, *own.notes]
        if own.rows:
            written.append(own.write(out).name)
            parts.append(f"Numbers: [{written[-1]}]({written[-1]})")
        for one in below.get(own.name, []):
            if drawn := one.draw(source, out):
                written.append(drawn[0])
                parts += [f"![{drawn[1]}]({drawn[0]})", f"*{drawn[1]}*"]
    (out / "README.md").write_text("\n\n".join(parts) + "\n")
    return written
