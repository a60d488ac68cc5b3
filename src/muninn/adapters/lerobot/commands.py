"""LeRobot's own commands, with the certificate that lies beside the checkpoint.

LeRobot imports plugins (packages named ``lerobot_policy_*``) in some of its commands, but not in
its policy server, and goes on without those that fail. So a command is run from here instead,
inside :func:`certified`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

from torch import Tensor

from muninn.adapters.registry import planner_of
from muninn.adapters.switch import StandIn, Tally, enable_cache
from muninn.certify.cached import OnMismatch
from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, InputError

CERTIFICATE = "muninn.safetensors"
"""The file beside ``config.json`` and ``model.safetensors`` of a checkpoint."""

COMMANDS = {
    "eval": "lerobot.scripts.lerobot_eval:main",
    "record": "lerobot.scripts.lerobot_record:main",
    "rollout": "lerobot.scripts.lerobot_rollout:main",
    "policy-server": "lerobot.async_inference.policy_server:serve",
}
"""Those that deploy policies; which of them there are depends on the version of LeRobot."""

_log = logging.getLogger("muninn")


class Awaiting(StandIn):
    """Switches the cache on where the policy will run: after its next move, at the latest to plan.

    Every command of LeRobot moves a policy to its device once it is loaded, and sets up real-time
    chunking before that.
    """

    def __init__(self, policy: Any, switch_on: Callable[[], None]) -> None:
        super().__init__(policy)
        self._policy, self._switch_on = policy, switch_on
        setattr(self.owner, self.name, self)
        policy.to = self.move

    def move(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of ``policy.to``."""
        moved = type(self._policy).to(self._policy, *args, **kwargs)
        self._done()
        return moved

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        self._done()
        plan: Tensor = getattr(self.owner, self.name)(*args, **kwargs)
        return plan

    def _done(self) -> None:
        delattr(self.owner, self.name)
        vars(self._policy).pop("to", None)
        try:
            self._switch_on()
        except Exception:
            setattr(self.owner, self.name, self)  # a server goes on; the next call is to fail, too
            raise


@contextmanager
def certified(
    certificate: str | Path | None = None,
    *,
    on_mismatch: OnMismatch = "error",
    tell: Callable[[str], Any] = _log.info,
) -> Iterator[list[Tally]]:
    """Inside, policies of LeRobot that are loaded from a checkpoint switch their cache on.

    Yields a list of what the plans of each took so far.

    Args:
        certificate: for every policy; by default ``muninn.safetensors`` beside each checkpoint, in
            its folder or its repository on the hub.
        on_mismatch: also if there is no such file: ``error`` raises CertificateError, ``full``
            warns and leaves the policy as it is. Else as in :func:`muninn.adapters.enable_cache`.
        tell: is given a sentence when a cache is switched on.
    """
    if on_mismatch not in get_args(OnMismatch):
        raise InputError(f"on_mismatch is 'error' or 'full', got {on_mismatch!r}")
    policies = import_module("lerobot.policies.pretrained").PreTrainedPolicy
    own, tallies = policies.from_pretrained.__func__, list[Tally]()

    def switch_on(policy: Any, file: str | Path) -> None:
        enable_cache(policy, file, on_mismatch=on_mismatch)
        tallies.append(policy.muninn.tally)
        cached = policy.muninn.cached
        how = f"full compute, because {cached.reason}"
        if cached.certificate is not None:
            how = f"the cache of {file}. {cached.certificate.promise()}"
        tell(f"{type(policy).__name__} plans with {how}")

    def from_pretrained(kind: Any, /, pretrained_name_or_path: str | Path, **rest: Any) -> Any:
        file = certificate or _beside(pretrained_name_or_path, rest)
        if file is None:
            problem = f"{pretrained_name_or_path} holds no {CERTIFICATE}, its certificate"
            if on_mismatch == "error":
                raise CertificateError(
                    f"{problem}; calibrate the policy and save it there (docs/guides/lerobot.md), "
                    "name another file, or choose on_mismatch 'full' to run without"
                )
            _log.warning("running full compute: %s", problem)
        elif on_mismatch == "error":
            Certificate.load(file)  # before a robot is connected
        policy = own(kind, pretrained_name_or_path, **rest)
        if file is not None:
            planner_of(policy)  # says what cannot be cached at all
            Awaiting(policy, lambda: switch_on(policy, file))
        return policy

    policies.from_pretrained = classmethod(from_pretrained)
    try:
        yield tallies
    finally:
        policies.from_pretrained = classmethod(own)


def _beside(pretrained: str | Path, hub: dict[str, Any]) -> Path | None:
    """The certificate of a checkpoint, a folder or a repository; None if it has none."""
    folder = Path(pretrained)
    if folder.is_dir():
        return folder / CERTIFICATE if (folder / CERTIFICATE).is_file() else None
    download = import_module("huggingface_hub").hf_hub_download
    names = ("revision", "cache_dir", "token", "local_files_only")
    try:
        given = {name: hub[name] for name in names if name in hub}
        return Path(download(str(pretrained), CERTIFICATE, **given))
    except import_module("huggingface_hub.errors").EntryNotFoundError:
        return None


def run(
    command: str,
    arguments: Sequence[str],
    *,
    certificate: str | Path | None = None,
    on_mismatch: OnMismatch = "error",
    tell: Callable[[str], Any] = print,
) -> None:
    """Run a command of LeRobot on its arguments; the policies that it loads plan with the cache.

    Ends by telling how many evaluations their plans took. An unknown command, and one that this
    LeRobot does not have, are an InputError. The rest is as in :func:`certified`.
    """
    if command not in COMMANDS:
        raise InputError(f"{command} is no command that deploys; there are {', '.join(COMMANDS)}")
    try:
        main = resolve_name(COMMANDS[command])
    except ImportError as error:
        raise InputError(
            f"LeRobot's {command} cannot be imported ({error}). Install what is missing; LeRobot "
            "0.4 has eval, record and policy-server, 0.6 has eval, rollout and policy-server"
        ) from error
    with certified(certificate, on_mismatch=on_mismatch, tell=tell) as tallies:
        given, sys.argv = sys.argv, [f"lerobot-{command}", *arguments]
        try:
            main()
            if not tallies:
                tell("no cache was switched on")
        finally:
            sys.argv = given
            for tally in tallies:
                tell(str(tally))
