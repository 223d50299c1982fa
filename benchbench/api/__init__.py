"""Python API: functions that do the work of the command line, print nothing and return objects.

This is the complete list of functions; `benchbench` re-exports them. A function's module is imported on first
use, so that each command imports only its own modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchbench.api.bisecting import *  # noqa: F403 - the list of functions is below
    from benchbench.api.comparisons import *  # noqa: F403
    from benchbench.api.machines import *  # noqa: F403
    from benchbench.api.measuring import *  # noqa: F403
    from benchbench.api.stored import *  # noqa: F403

MODULES = {  # module of this package → its functions
    "measuring": (
        *("check", "check_claim", "compare_ab", "dry_run", "measure", "measure_ab", "run", "run_model"),
    ),
    "bisecting": ("bisect",),
    "comparisons": ("compare", "compare_profiles", "hardware", "history"),
    "machines": (
        *("create_environment", "devices", "doctor", "fleet", "list_environments", "measure_ceilings"),
        "remove_environments",
    ),
    "stored": (
        *("baseline_set", "folder", "frame", "load", "merge", "profile", "report", "share_run", "validate"),
    ),
}
FUNCTIONS = {name: module for module, names in MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{FUNCTIONS[name]}"), name)
