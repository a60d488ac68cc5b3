"""The verb of deployment: a planner plus its certificate is a fast planner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.certify.certificate import Certificate, differences
from muninn.context import Context, call_explained, form, unlike
from muninn.engines.choose import runtime_for
from muninn.engines.runtime import OnFailure, Runtime, log_once
from muninn.errors import CertificateError, InputError
from muninn.identity.arithmetic import arithmetic, switches
from muninn.identity.snapshot import Places, Snapshot
from muninn.identity.watch import Watch, in_train_mode
from muninn.model.planner import Noise, Planner, require_planner
from muninn.programs.plan import Program
from muninn.record import Record

OnMismatch = Literal["error", "full"]
State = Callable[[], dict[str, Any]]
"""What a policy's certificate depends on besides its planner; cheap to read."""

_PUT_BACK = "put that back, or calibrate the planner as it is now"


class CachedPlanner:
    """Runs the certified program. Build it with :func:`cache`.

    It compares every call with the certificate: arithmetic and context before the call runs, the
    network while the device is busy with it. ``on_mismatch`` says what happens to a call that
    does not fit; the next one that fits is cached again.
    """

    def __init__(
        self,
        planner: Planner,
        certificate: Certificate | None,
        on_failure: OnFailure = "full",
        reason: str | None = None,
        *,
        on_mismatch: OnMismatch = "error",
        state: State = dict,
    ) -> None:
        self.planner = planner  # the user's, untouched
        self.certificate = certificate  # None where full compute runs instead
        self.on_mismatch = on_mismatch
        self._state = state
        self._watch: Watch | None = None
        self._rewritten: Places = {}  # by the network itself, whenever it is asked
        self._identifying = threading.Lock()
        # A network may set itself up when it first runs: where questions are asked, or in a call.
        self._ran = certificate is None or certificate.questions is not None
        self._unidentified: str | None = None  # what a fingerprint leaves out, as it was at first
        self._judged = reason
        if certificate is not None and (found := self._identify(certificate)):
            self._judged = (
                f"the certificate was made for another planner: {'; '.join(found)}. Calibrate this "
                "planner"
            )
            if on_mismatch == "error":
                raise CertificateError(
                    f"{self._judged}, or pass on_mismatch='full' to run it uncached"
                )
            log_once(f"running full compute: {self._judged}")
            self.certificate = self._watch = None
        self._on_failure = on_failure
        self._was = state()
        self._set_up()

    def _set_up(self) -> None:
        planner, on_failure = self.planner, self._on_failure
        full = Program.full(planner.sampler.kind)
        if self.certificate is None:
            self._full = runtime_for(planner, full, on_failure=on_failure)
            return
        self._runtime = runtime_for(planner, self.certificate.program, on_failure=on_failure)
        # Eager: nothing is to be captured or compiled in the middle of a run.
        self._full = Runtime(replace(planner, engine="eager"), full, on_failure=on_failure)

    # -- does a call fit the certificate -------------------------------------------------------

    @property
    def reason(self) -> str | None:
        """Why a call made now runs full compute, or None; :meth:`misfit` looks at its context."""
        if self.certificate is None:
            return self._judged
        return self.other_arithmetic or self._look()()

    @property
    def other_arithmetic(self) -> str | None:
        """Why the arithmetic in force is not the certificate's, or None; quicker than reason."""
        if self.certificate is None:
            return None
        was, here = self.certificate.arithmetic, arithmetic(self.planner.device)
        if was == here:
            return None
        return (
            f"arithmetic: certificate {was or 'plain'}, call {here or 'plain'}; call with the "
            "autocast and precision settings of calibration, or calibrate with those of the call"
        )

    def misfit(self, context: Context, rows: int) -> str | None:
        """Why a call of some rows is not of the kind that was calibrated, or None."""
        was = None if self.certificate is None else self.certificate.form
        if was is not None and (here := form(context)) != was:
            return f"context: {unlike(was, here)}"
        return self.too_many(rows)

    def too_many(self, rows: int) -> str | None:
        """Why rows may not be run together, or None."""
        if rows < 2 or self.certificate is None or self.certificate.together:
            return None
        return (
            f"batch: the call has {rows} rows. Rows that are run together influence each other in "
            "this network, so it was calibrated one row at a time; call it row by row"
        )

    def _look(self, since: Any = None) -> Callable[[], str | None]:
        """Look at the network; the returned function says why it is another one, or None.

        The device may work in between; ``since`` is from :meth:`Watch.mark`.
        """
        state = self._state()
        if state != self._was:
            found = differences("", self._was, state, "policy")
            return lambda: f"policy: {'; '.join(found)}; {_PUT_BACK}"
        change = None if self._watch is None else self._watch.change(since)
        return lambda: self._judge("copied" if change is None else change())

    def _judge(self, change: str | None) -> str | None:
        """Why the network does not fit; identifies it again where weights or settings changed."""
        if change == "code" and self._ran:
            return (
                "network: a method, a hook or another function that it runs was replaced after the "
                f"certificate was compared with it; {_PUT_BACK}"
            )
        if change is not None and self.certificate is not None:
            with self._identifying:
                try:
                    found = self._identify(self.certificate)
                except Exception as error:  # weights without memory, say, or too little of it
                    self._watch = None  # so that the next call tries again
                    found = [f"{type(error).__name__}: {error}".partition("\n")[0]]
            words = "network: its weights, settings or mode are no longer those of the certificate"
            self._judged = f"{words} ({'; '.join(found)}); {_PUT_BACK}" if found else None
        return self._judged

    def _identify(self, certificate: Certificate) -> list[str]:
        """Fields in which the planner differs from its certificate; watches it from here on.

        Attributes that the network rewrites when it is asked are not watched.
        """
        planner, other = self.planner, list[str]()
        self._watch = None  # lets go of weights that were replaced
        before = Snapshot(planner.denoiser, planner.condition)
        fits = switches(certificate.arithmetic) == switches(arithmetic(planner.device))
        if fits:  # else it is asked at the first call that has the certificate's precision
            rewritten = lambda: self._rewritten.update(before.rewritten())  # noqa: E731
            other = certificate.other_answers(planner, rewritten)
        # Before weights are hashed: they may change meanwhile, and that is to be seen next time.
        watch = Watch(planner.denoiser, planner.condition, self._rewritten)
        here = watch.unidentified()
        self._unidentified = self._unidentified or here
        if here != self._unidentified:
            other.append("model: a part of it is another one than when the cache was made")
        found = certificate.differences(planner) or other
        if found and (mode := in_train_mode(planner.denoiser)) is not None:
            found.insert(0, f"model: a {mode} is in train mode; call .eval() on it first")
        self._watch = watch if fits else None
        return found

    def __getstate__(self) -> dict[str, Any]:
        """A copy has weights of its own, and identifies them at its first call."""
        left = ("_identifying", "_runtime", "_full")
        own = {name: value for name, value in vars(self).items() if name not in left}
        return {**own, "_watch": None, "_rewritten": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _identifying=threading.Lock())
        self._set_up()

    # -- the call ------------------------------------------------------------------------------

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
        estimate among the calibration calls; ``record.fallback`` says why full compute ran.

        Raises:
            CertificateError: the call does not fit, and ``on_mismatch`` is ``error``.
        """
        noise = self.planner.prepare(context, noise, generator)
        certificate = self.certificate
        if certificate is None:
            return self._in_full(context, noise, self._judged)
        reason = self.other_arithmetic or self.misfit(context, len(noise.initial))
        if reason is None:
            looked: list[Callable[[], str | None]] = []
            since = None if self._watch is None else self._watch.mark()
            try:
                trajectory, record = self._runtime.run(
                    context, noise, lambda: looked.append(self._look(since))
                )
                reason, self._ran = looked[0](), True
            except Exception as error:
                try:
                    reason = self._look()()
                except Exception:  # the first one says more
                    raise error from None
                if reason is None:
                    raise
            if reason is not None:
                self._runtime.forget()  # it may have captured what the network is not
        if reason is not None:
            self.refuse(reason)
            return self._in_full(context, noise, reason)
        rank = certificate.rank(record.estimate)
        if certificate.bound is None:
            return trajectory, replace(record, rank=rank)
        bound = certificate.bound(record.estimate)
        if certificate.reference is None:  # a fall-back is the full plan itself
            bound[[reason is not None for reason in record.fallback]] = 0.0
        return trajectory, replace(record, bound=bound, rank=rank)

    def refuse(self, reason: str) -> None:
        """Raise CertificateError where ``on_mismatch`` is ``error``; log the reason otherwise."""
        if self.on_mismatch == "error":
            raise CertificateError(
                f"{reason}. With on_mismatch='full' such calls are planned with full compute"
            )
        log_once(f"running full compute: {reason}")

    def _in_full(self, context: Context, noise: Noise, reason: str | None) -> tuple[Tensor, Record]:
        with call_explained(noise.initial, context):
            trajectory, record = self._full.run(context, noise)
        return trajectory, replace(record, fallback=(reason,) * len(trajectory))


def cache(
    planner: Planner,
    certificate: Certificate | str | Path,
    *,
    on_mismatch: OnMismatch = "error",
    on_failure: OnFailure = "full",
    state: State = dict,
) -> CachedPlanner:
    """A fast planner that keeps its certificate's promise.

    Args:
        planner: the planner that was calibrated.
        certificate: the certificate, or the path of its file.
        on_mismatch: what to do if the file cannot be read or was made for another planner, or if
            a later call does not fit it (the network was changed, other autocast, another kind of
            context): ``error`` raises, ``full`` runs full compute and says so in every record.
        on_failure: the same for a call that fails (NaN, unexpected shape).
        state: what else the certificate depends on, for adapters; compared at every call.

    Raises:
        CertificateError: names the fields that differ, with ``on_mismatch="error"``.
        InputError: what is given is no planner, or neither a certificate nor a path.
    """
    order = "muninn.cache(planner, certificate)"
    require_planner(planner, order)
    if on_mismatch not in ("error", "full"):
        raise InputError(f"on_mismatch is 'error' or 'full', got {on_mismatch!r}")
    if not isinstance(certificate, Certificate | str | PathLike):
        raise InputError(
            "certificate is a Certificate or the path of its file, got "
            f"{type(certificate).__name__}; the order is {order}, and muninn.calibrate(planner, "
            "...) makes a certificate"
        )
    try:
        if not isinstance(certificate, Certificate):
            certificate = Certificate.load(certificate)
    except CertificateError as error:
        if on_mismatch == "error":
            raise
        log_once(f"running full compute: {error}")
        return CachedPlanner(planner, None, on_failure, str(error))
    fast = CachedPlanner(planner, certificate, on_failure, on_mismatch=on_mismatch, state=state)
    if fast.certificate is not None:
        for words in certificate.caveats(planner):
            log_once(words)
    return fast
