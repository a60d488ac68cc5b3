"""Settings of all tests."""

import contextlib

with contextlib.suppress(ImportError):  # tests beside LeRobot's packages do without
    from hypothesis import settings

    # How long a test takes says nothing of what it tests, least of all on a shared machine.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
