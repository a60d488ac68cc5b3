"""A fleet's audits as one body of evidence, whatever the order in which logs come in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, InputError
from muninn.monitor.monitor import Audit, certificate_digest, evidence_against, read_audits


class Fleet:
    """Merges audits of many robots that run one certificate.

    The state is a function of the *set* of audits: logs may come in any order, in parts and more
    than once. Which logs have come in so far must not depend on what is in them. The certificate
    is a confident one; ``level`` bounds the probability of ever raising a false alarm.
    """

    def __init__(self, certificate: Certificate, *, level: float = 0.05) -> None:
        self._evidence = evidence_against(certificate, level)
        self.digest = certificate_digest(certificate)
        self.level = self._evidence.level
        self.duplicates = 0  # audits that had been there before
        self._audits: dict[tuple[str, str], Audit] = {}

    def add(self, audits: Iterable[Audit]) -> int:
        """Take audits in; how many were new. All of them are taken, or none.

        Raises CertificateError for an audit of another certificate, InputError where two audits of
        one robot and call differ.
        """
        fresh: dict[tuple[str, str], Audit] = {}
        given = list(audits)
        for audit in given:
            key = audit.robot, audit.call
            if audit.certificate != self.digest:
                raise CertificateError(
                    f"robot {audit.robot!r} was audited under certificate {audit.certificate}, "
                    f"this fleet runs {self.digest}; merge each certificate's logs on their own"
                )
            known = self._audits.get(key) or fresh.setdefault(key, audit)
            if known != audit:
                raise InputError(
                    f"robot {audit.robot!r} has two audits of call {audit.call} that differ "
                    f"({known} and {audit}); robots must have names of their own"
                )
        for audit in fresh.values():
            self._evidence.add(audit.ordinal, audit.violated)
        self._audits.update(fresh)
        self.duplicates += len(given) - len(fresh)
        return len(fresh)

    def add_log(self, path: str | Path) -> int:
        """Take a robot's audit log in, or what is new in it."""
        return self.add(read_audits(path))

    @property
    def audits(self) -> list[Audit]:
        """All audits, by robot and number."""
        return sorted(self._audits.values(), key=lambda audit: (audit.robot, audit.ordinal))

    @property
    def violations(self) -> int:
        """Audits beyond their tolerance."""
        return self._evidence.violations

    @property
    def e_value(self) -> float:
        """Evidence against the promise."""
        return self._evidence.e_value

    @property
    def alarm(self) -> str | None:
        """Why the certificate is not to be relied on, by what is here now; act the first time."""
        found = self._evidence.alarm
        return None if found is None else f"fleet {found}"
