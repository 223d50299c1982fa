"""Parse, call one function, print, exit: the only package that prints or exits. A file per command."""

from benchbench.cli import (
    baseline,
    check,
    compare,
    doctor,
    env,
    export,
    fleet,
    hardware,
    history,
    listing,
    merge,
    profile,
    report,
    run,
    runs,
    validate,
)
from benchbench.cli.app import main

__all__ = [
    "baseline",
    "check",
    "compare",
    "doctor",
    "env",
    "export",
    "fleet",
    "hardware",
    "history",
    "listing",
    "main",
    "merge",
    "profile",
    "report",
    "run",
    "runs",
    "validate",
]
