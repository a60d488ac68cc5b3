"""The published method, built as described, its gates and what people use in its place.

Complete and faithful, for comparison: its certificate does not hold (docs/paper.md says why and
shows what came out). For a promise that does, use :func:`muninn.calibrate`.

    pairs = collect_pairs(planner, [probe], contexts)[0]      # Algorithm 2
    envelope = fit_envelope(pairs, risk=0.05)
    gate = paper_budget(planner, envelope, tolerance=0.05)
    plans, record = ProbedPlanner(planner, probe, gate)(context)   # Algorithm 1
"""

from muninn.paper.envelope import calls_needed, fit_envelope
from muninn.paper.epsilon import eligible_steps
from muninn.paper.gates import Accumulated, Threshold, paper_budget
from muninn.paper.ghost import GhostPairs, collect_pairs
from muninn.paper.named_split import NamedSplit
from muninn.paper.policy import ProbedPlanner
from muninn.paper.probe_gate import ProbeGatedRuntime
from muninn.paper.split import GuidedSplit, InputSplit, NetworkSplit, Probe, split_of

__all__ = [
    "Accumulated",
    "GhostPairs",
    "GuidedSplit",
    "InputSplit",
    "NamedSplit",
    "NetworkSplit",
    "Probe",
    "ProbeGatedRuntime",
    "ProbedPlanner",
    "Threshold",
    "calls_needed",
    "collect_pairs",
    "eligible_steps",
    "fit_envelope",
    "paper_budget",
    "split_of",
]
