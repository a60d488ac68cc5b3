"""Settings of all tests."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

with contextlib.suppress(ImportError):  # tests beside LeRobot's packages do without
    from hypothesis import settings

    # How long a test takes says nothing of what it tests, least of all on a shared machine.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """What earlier tests compiled is forgotten, and so is what this one does."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
