"""accelbench: the same deep-learning work on every framework, measured and checked.

`run`, `load`, `compare`, `frame`, `profile` and `compare_profiles` are the command line's work as functions
(docs/api.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchbench.api import compare, compare_profiles, frame, load, profile, run

__version__ = "0.1.0"
__all__ = ["compare", "compare_profiles", "frame", "load", "profile", "run"]


def __getattr__(name: str) -> Any:
    # Workers import this package under interpreters that have none of our dependencies.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("benchbench.api"), name)
