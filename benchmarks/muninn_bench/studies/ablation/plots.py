"""Pictures of the study, drawn from the raw folder; each is left out where its data are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from muninn_bench.studies.ablation import plots_findings, plots_programs
from muninn_bench.studies.ablation.folder import Raw

# Which picture stands below which table, in drawing order.
BELOW = {
    "promise.png": "promise",
    "risk.png": "ii_risk_0.05",
    "probes.png": "iv_probes",
    "variants.png": "vii_ours",
    "time.png": "quarter",
    "difficulty.png": "kf3_bins",
    "reliability.png": "kf4",
    "charged.png": "kf4_charged",
    "frontier.png": "frontier",
}
_MAKERS: dict[str, Callable[[Raw], tuple[Any, str] | None]] = {
    "promise.png": plots_programs.promise,
    "risk.png": plots_programs.risk,
    "probes.png": plots_findings.probes,
    "variants.png": plots_programs.variants,
    "time.png": plots_programs.time,
    "difficulty.png": plots_findings.difficulty,
    "reliability.png": plots_findings.reliability,
    "charged.png": plots_findings.charged,
    "frontier.png": plots_programs.frontier,
}


def draw_all(raw: Raw, out: Path) -> dict[str, str]:
    """Draw what can be drawn; file names with their captions."""
    import matplotlib

    style: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    drawn = {}
    for name in BELOW:
        with matplotlib.rc_context(style):
            made = _MAKERS[name](raw)
            if made is not None:
                figure, drawn[name] = made
                figure.savefig(out / name, dpi=100, metadata={"Software": None})
    return drawn
