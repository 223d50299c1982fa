"""accelbench: the same deep-learning work on every framework, measured and checked.

What the command line does, as functions that return its objects and print nothing (docs/api.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchbench.api import (
        baseline_set,
        check,
        compare,
        compare_ab,
        compare_profiles,
        devices,
        doctor,
        dry_run,
        folder,
        frame,
        history,
        load,
        measure_ceilings,
        measure_noise,
        profile,
        report,
        run,
        selftest,
    )

__version__ = "0.1.0"
__all__ = [
    "baseline_set",
    "check",
    "compare",
    "compare_ab",
    "compare_profiles",
    "devices",
    "doctor",
    "dry_run",
    "folder",
    "frame",
    "history",
    "load",
    "measure_ceilings",
    "measure_noise",
    "profile",
    "report",
    "run",
    "selftest",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    # Workers import this package under interpreters that have none of our dependencies.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("benchbench.api"), name)
