"""How every figure looks: one style, one set of colours and names, files that repeat exactly."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

COLOURS = {
    "full": "#8a97a3",
    "muninn": "#1f66b0",
    "fewsteps": "#d1782a",
    "dpmsolver": "#3f8f5b",
    "unipc": "#8d5aa5",
    "taylor": "#b09a3e",
}
INK = "#1c2733"
TITLES = {
    "full": "Full",
    "muninn": "Muninn",
    "fewsteps": "FewSteps",
    "dpmsolver": "DPM-Solver++",
    "unipc": "UniPC",
    "taylor": "Taylor series",
}


def subplots(rows: int, columns: int, width: float, height: float, **options: Any) -> Any:
    """Figure and axes in the project's style; sizes in inches."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "muninn",
        }
    )
    from matplotlib import pyplot

    return pyplot.subplots(
        rows, columns, figsize=(width, height), constrained_layout=True, **options
    )


def save(figure: Any, path: Path) -> Path:
    """Write a picture and close it."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def svg(figure: Any) -> str:
    """A picture as text that can stand in a page."""
    from matplotlib import pyplot

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
