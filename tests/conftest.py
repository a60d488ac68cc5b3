"""Settings of all tests."""

from hypothesis import settings

# How long a test takes says nothing about what it tests, least of all on a shared machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
