"""Python's way in: what the command line does, as functions that print nothing and return its objects.

This is the one list of them. `benchbench` has them all, and loads this when it is first asked for one.
"""

from benchbench.api.environments import (
    create_environment,
    list_environments,
    plan_environment,
    remove_environments,
)
from benchbench.api.machines import fleet
from benchbench.api.measuring import (
    check,
    compare_ab,
    devices,
    doctor,
    dry_run,
    measure_ceilings,
    measure_noise,
    run,
    selftest,
)
from benchbench.api.stored import (
    baseline_set,
    compare,
    compare_profiles,
    folder,
    frame,
    hardware,
    history,
    load,
    merge,
    profile,
    report,
    share_run,
    validate,
)

__all__ = [
    "baseline_set",
    "check",
    "compare",
    "compare_ab",
    "compare_profiles",
    "create_environment",
    "devices",
    "doctor",
    "dry_run",
    "fleet",
    "folder",
    "frame",
    "hardware",
    "history",
    "list_environments",
    "load",
    "measure_ceilings",
    "measure_noise",
    "merge",
    "plan_environment",
    "profile",
    "remove_environments",
    "report",
    "run",
    "selftest",
    "share_run",
    "validate",
]
