"""A certificate that promises nothing: to run a planner as certified without a calibration."""

from __future__ import annotations

import numpy as np

from muninn.certify.certificate import Bound, Certificate, library_versions
from muninn.context import Context, form
from muninn.model.planner import Planner
from muninn.programs.plan import AnyProgram, Family, Program


def uncalibrated(planner: Planner, program: AnyProgram, context: Context = None) -> Certificate:
    """As if the program had been certified for the planner; its figures mean nothing.

    With a context, calls are compared with its form, as with that of calibrated contexts.
    """
    full = Program.full(planner.sampler.kind)
    return Certificate(
        identity=planner.identity(),
        reference=None,
        family=Family((full, program), "uncalibrated"),
        member=1,
        tolerance=1.0,
        tolerance_name=None,
        risk=0.05,
        confidence=0.95,
        unit="call",
        loop="open",
        metric="rms_step",
        batch_size=1,
        counts={"tune": 0, "certify": 99, "bound": 19},
        seed=0,
        realised=[],
        estimates=np.array([0.0, 1e-3, 1.0]),
        bound=Bound(np.array([0.0, 10.0]), np.array([0.0, 10.0]), 0.1),
        versions=library_versions(),
        form=None if context is None else form(context),
    )
