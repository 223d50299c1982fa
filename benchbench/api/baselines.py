"""The function that makes a stored run a session of a baseline."""

from __future__ import annotations

from pathlib import Path

from benchbench.gate import stages
from benchbench.gate.stages import Acceptance
from benchbench.running.observer import RunObserver
from benchbench.store.selectors import results_folder


def baseline_set(
    name: str,
    run: str | Path = "latest",
    *,
    replace: bool = False,
    accept: bool = False,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
) -> Acceptance:
    """Add a stored run to the sessions of a baseline, as `accelbench baseline set` does.

    `replace`: as the only session of its machine. `accept`: though it failed its check, its code is not
    committed, or it is half of a comparison. Raises UsageError, UnreadableInput, CannotWrite.
    """
    told = observer or RunObserver()
    root = results_folder(results)
    return stages.accept(root, name, str(run), told.note, replace=replace, anyway=accept)
