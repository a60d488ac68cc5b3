"""Every error Muninn raises on purpose: one root, few children.

Each message says what was wrong, the value seen, what is allowed, and the next thing to do.
"""

from __future__ import annotations


class MuninnError(Exception):
    """Root of all errors raised by Muninn."""


class InputError(MuninnError, ValueError):
    """An argument is out of range, empty, or does not fit the others."""


class DenoiserError(MuninnError):
    """The denoiser returned something a sampler cannot use (shape, dtype, device, NaN)."""


class CalibrationError(MuninnError):
    """A certificate cannot be issued from these calls; the message says what is missing."""


class CertificateError(MuninnError):
    """A certificate file cannot be read, or was made for another planner; names the field."""
