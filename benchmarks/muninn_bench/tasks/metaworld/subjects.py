"""The policies under study: one set of diffusion weights with three samplers, and a flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muninn.adapters import enable_cache, planner_of
from muninn.adapters.lerobot import executed_actions, global_conditions
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn_bench.measure.alternatives import TAYLOR, Alternative, AlternativeSearch, available
from muninn_bench.measure.matched import allowed_share, tuning_calls
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.tasks.metaworld.flow import STEPS, flow_planner
from muninn_bench.tasks.metaworld.policy import features, load_policy

Call = Callable[[Tensor], Tensor]

SAMPLERS: dict[str, tuple[str, int]] = {
    "ddpm100": ("DDPM", 100),
    "ddim100": ("DDIM", 100),
    "ddim16": ("DDIM", 16),
}
FLOW = f"flow{STEPS}"
VARIANTS = (*SAMPLERS, FLOW)

LIMITS = (0.1, 0.1, 0.1, 0.1)
"""Acceptable difference of each action channel: 1 mm of commanded motion a step along x, y, z, and
a tenth of the gripper's effort."""


@dataclass(frozen=True)
class Subject:
    """A policy as the study uses it.

    Attributes:
        name: one of ``VARIANTS``.
        policy: LeRobot's object.
        preprocessor, postprocessor: LeRobot's.
        planner: the policy's sampling loop.
        folder: where the policy was read, for objects of their own.
    """

    name: str
    policy: Any
    preprocessor: Any
    postprocessor: Any
    planner: Planner
    folder: Path

    @classmethod
    def load(cls, models: Path, name: str) -> Subject:
        """From the folder that holds ``diffusion`` and ``flow``."""
        if name not in VARIANTS:
            raise InputError(f"variant is one of {', '.join(VARIANTS)}, got {name!r}")
        folder = models / ("flow" if name == FLOW else "diffusion")
        parts = load_policy(folder, *SAMPLERS.get(name, ("DDPM", 100)))
        planner = flow_planner(parts[0]) if name == FLOW else planner_of(parts[0])
        return cls(name, *parts, planner, folder)

    def contexts(self, histories: NDArray[np.floating]) -> Tensor:
        """What the network is told, (rows, condition), of observations (rows, 2, 39)."""
        seen = features(torch.from_numpy(np.asarray(histories, np.float32)))
        return global_conditions(self.policy, [self.preprocessor(seen)])

    def actions(self, plans: Tensor) -> NDArray[np.float64]:
        """The executed actions of plans (rows, 16, 4) in units of the environment, (rows, 8, 4)."""
        config = self.policy.config
        first = config.n_obs_steps - 1
        executed = plans[:, first : first + config.n_action_steps]
        physical = self.postprocessor(executed.reshape(-1, executed.shape[2]))
        return np.asarray(physical.reshape(executed.shape).numpy(), np.float64)

    def metric(self) -> Metric:
        """Largest share of its limit that an executed action differs by, in any channel."""
        return executed_actions(self.policy, self.postprocessor, LIMITS)

    # -- ways to plan --------------------------------------------------------------------------

    def full(self) -> Run:
        """Full compute."""
        return plain(self.planner)

    def cached(self, certificate: Certificate) -> Run:
        """The certified program."""
        fast = cache(self.planner, certificate)
        return lambda context, noise: fast(context, noise=noise)

    def fewer(
        self, count: int, contexts: Tensor, certificate: Certificate
    ) -> dict[str, Alternative]:
        """The same network with ``count`` evaluations: what a user would do instead of caching.

        Tuned on the calls on which the certificate's family was. Alternatives of a stochastic
        sampler are those of its deterministic twin, DDIM with 100 steps, and tuned to that.

        Args:
            count: evaluations of a call.
            contexts: that the certificate was made from.
            certificate: of this policy.
        """
        base = self.deterministic()
        table = None
        if self.name != FLOW:
            table = self.policy.diffusion.noise_scheduler.alphas_cumprod.double().numpy()
        assert certificate.tolerance is not None
        calls = tuning_calls(base, contexts, self.metric(), certificate)
        search = AlternativeSearch(calls, certificate.tolerance, allowed_share(certificate), table)
        names = [name for name in available(base) if name != TAYLOR]
        return search.best(max(2, min(count, len(base.sampler))), names)

    def deterministic(self) -> Planner:
        """The planner, or where its sampler is stochastic the same network with DDIM."""
        if not self.planner.sampler.stochastic:
            return self.planner
        return Subject.load(self.folder.parent, "ddim100").planner

    # -- single calls, as a user makes them ----------------------------------------------------

    def own_call(self) -> Call:
        """LeRobot's own sampling loop (for the flow, ours): noise from torch's global generator."""
        if self.name == FLOW:
            return self.planner.sample
        loop = self.policy.diffusion.conditional_sample
        return torch.no_grad()(lambda context: loop(len(context), global_cond=context))

    def cached_call(self, certificate: Certificate) -> Call:
        """The same call on a policy of its own whose cache is enabled."""
        if self.name == FLOW:
            fast = cache(self.planner, certificate)
            return lambda context: fast(context)[0]
        twin = Subject.load(self.folder.parent, self.name)
        enable_cache(twin.policy, certificate)
        return twin.own_call()
