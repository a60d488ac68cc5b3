"""One line in the frameworks people use: the verbs, for every policy class in the registry.

Importing this imports no framework.
"""

from __future__ import annotations

from muninn.adapters.registry import adapter_for, planner_of, register
from muninn.adapters.switch import disable_cache, enable_cache, is_cache_enabled

__all__ = [
    "adapter_for",
    "disable_cache",
    "enable_cache",
    "is_cache_enabled",
    "planner_of",
    "register",
]
