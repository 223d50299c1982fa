"""The function that checks stored files."""

from __future__ import annotations

import os
from pathlib import Path

from benchbench.api.stored import folder
from benchbench.gate import baselines
from benchbench.plan import suite
from benchbench.store.selectors import results_folder
from benchbench.validating.faults import Validation
from benchbench.validating.files import validate_path


def validate(stored: str | Path = "latest", *, results: str | Path | None = None) -> Validation:
    """What is wrong with stored files, as `accelbench validate` tells it.

    `stored`: a file or folder, a baseline, a suite, or a run as in `load`. Read by what shares no code with
    the writer. Raises UnreadableInput where there is none of that name.
    """
    root, name = results_folder(results), str(stored)
    if os.path.exists(name):
        return validate_path(Path(name))
    if name in baselines.baseline_names(root):
        return validate_path(root / baselines.FOLDER / name)
    if name in suite.suite_names():
        return validate_path(suite.suite_path(name))
    return validate_path(folder(name, root))
