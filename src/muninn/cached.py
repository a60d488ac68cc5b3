"""The verb of deployment: a planner plus its certificate is a fast planner."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.arithmetic import arithmetic
from muninn.certificate import Certificate
from muninn.context import Context
from muninn.denoiser import described, fingerprint
from muninn.engines import runtime_for
from muninn.errors import CertificateError, InputError
from muninn.plan import Program
from muninn.planner import Noise, Planner
from muninn.record import Record
from muninn.runtime import OnFailure, Runtime, log_once
from muninn.weights import Weights

OnMismatch = Literal["error", "full"]

_OTHER_NETWORK = (
    "network: its weights, settings or mode are no longer those of the certificate; put them back, "
    "or calibrate the planner as it is now"
)


class CachedPlanner:
    """Runs the certified program. Build it with :func:`cache`.

    Attributes:
        planner: the user's planner, untouched.
        certificate: the promise, or None where full compute runs instead.
    """

    def __init__(
        self,
        planner: Planner,
        certificate: Certificate | None,
        on_failure: OnFailure,
        reason: str | None = None,
    ) -> None:
        self.planner = planner
        self.certificate = certificate
        self._reason = reason
        full = Program.full(planner.sampler.kind)
        if certificate is None:
            self._full = runtime_for(planner, full, on_failure=on_failure)
            return
        self._runtime = runtime_for(planner, certificate.program, on_failure=on_failure)
        # Eager: nothing is to be captured or compiled in the middle of a run.
        self._full = Runtime(replace(planner, engine="eager"), full, on_failure=on_failure)
        self._weights: Weights | None = Weights(planner.denoiser)
        self._unidentified = self._weights.unidentified()

    @property
    def reason(self) -> str | None:
        """Why a call made here and now runs full compute instead of the program, or None."""
        if self.certificate is None:
            return self._reason
        return self.other_arithmetic or self._other_network(self.certificate.identity["model"])

    @property
    def other_arithmetic(self) -> str | None:
        """Why the arithmetic in force is not the certificate's, or None; quicker than reason."""
        if self.certificate is None:
            return None
        was, here = self.certificate.arithmetic, arithmetic(self.planner.device)
        if was == here:
            return None
        return _logged(
            f"arithmetic: certificate {was or 'plain'}, call {here or 'plain'}; call with the "
            "autocast and precision settings of calibration, or calibrate with those of the call"
        )

    def _other_network(self, identity: dict[str, Any]) -> str | None:
        """Why the network is not the certificate's, or None.

        It is identified anew when anything about it has changed since it was the last time.
        """
        denoiser = self.planner.denoiser
        guidance = described(denoiser)
        if guidance != identity["guidance"]:
            return _logged(f"guidance: certificate {identity['guidance']}, planner {guidance}")
        if self._weights is None or not self._weights.unchanged():
            weights = Weights(denoiser)  # first: what changes meanwhile is to be seen next time
            same = fingerprint(denoiser) == identity
            same &= weights.unidentified() == self._unidentified
            self._reason = None if same else _OTHER_NETWORK
            self._weights = weights
        return None if self._reason is None else _logged(self._reason)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has weights of its own, and identifies them at its first call."""
        return {**vars(self), "_weights": None}

    def __call__(
        self,
        context: Context = None,
        *,
        noise: Noise | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Record]:
        """Trajectories (batch, horizon, dim) and a record of what they took.

        Takes what :meth:`Planner.sample` takes. ``record.bound`` bounds the deviation of each row
        with probability ``1 - risk`` on average over calls; ``record.rank`` places its error
        estimate among the calibration calls.

        A call under another arithmetic than calibration's, or with a network that is no longer the
        certificate's, is planned with full compute, and ``record.fallback`` says so; the next that
        fits is cached again.
        """
        reason = self.reason
        if self.certificate is None or reason is not None:
            trajectory, record = self._full(context, noise=noise, generator=generator)
            return trajectory, replace(record, fallback=(reason,) * len(trajectory))
        trajectory, record = self._runtime(context, noise=noise, generator=generator)
        bound = self.certificate.bound(record.estimate)
        if self.certificate.reference is None:  # a fall-back is the full plan itself
            bound[[reason is not None for reason in record.fallback]] = 0.0
        return trajectory, replace(record, bound=bound, rank=self.certificate.rank(record.estimate))


def _logged(reason: str) -> str:
    log_once(f"running full compute: {reason}")
    return reason


def cache(
    planner: Planner,
    certificate: Certificate | str | Path,
    *,
    on_mismatch: OnMismatch = "error",
    on_failure: OnFailure = "full",
) -> CachedPlanner:
    """A fast planner that keeps its certificate's promise.

    Args:
        planner: the planner that was calibrated.
        certificate: the certificate, or the path of its file.
        on_mismatch: what to do if the file cannot be read or was made for another program:
            ``error`` raises, ``full`` runs full compute and says so in every record.
        on_failure: what to do if a call fails (NaN, unexpected shape): ``full`` runs full
            compute for it, ``error`` raises.

    Raises:
        CertificateError: names the fields that differ, with ``on_mismatch="error"``.
        InputError: what is given is neither a certificate nor a path.
    """
    if on_mismatch not in ("error", "full"):
        raise InputError(f"on_mismatch is 'error' or 'full', got {on_mismatch!r}")
    if not isinstance(certificate, Certificate | str | PathLike):
        raise InputError(
            "certificate is a Certificate or the path of its file, got "
            f"{certificate!r:.80}; muninn.calibrate(planner, ...) makes one"
        )
    try:
        if not isinstance(certificate, Certificate):
            certificate = Certificate.load(certificate)
        differences = certificate.mismatches(planner)
        if differences:
            raise CertificateError(
                "the certificate was made for another program: "
                + "; ".join(differences)
                + ". Calibrate this planner, or pass on_mismatch='full' to run it uncached"
            )
    except CertificateError as error:
        if on_mismatch == "error":
            raise
        log_once(f"running full compute: {error}")
        return CachedPlanner(planner, None, on_failure, str(error))
    if certificate.identity["model"]["weights"] is None:
        log_once("no weights were found in the denoiser, so the certificate cannot check them")
    return CachedPlanner(planner, certificate, on_failure)
