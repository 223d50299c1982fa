"""The functions that find, read and move stored runs.

A run is named by its id, the start of one, `latest`, `latest~1`, or a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchbench.model.run import Run
from benchbench.store import runs, selectors
from benchbench.store.merging import MergedRun, merge_runs
from benchbench.store.selectors import results_folder
from benchbench.store.sharing import SharedRun, write_shared


def load(run: str | Path = "latest", results: str | Path | None = None) -> Run:
    """A stored run: an id, the start of one, `latest`, `latest~1`, or a run's folder.

    `results`: the folder that keeps runs, `results` or $ACCELBENCH_RESULTS. Raises UnreadableInput.
    """
    return runs.read_run(folder(run, results))


def folder(run: str | Path = "latest", results: str | Path | None = None) -> Path:
    """Where a stored run is kept; it is named as in `load`. Raises UnreadableInput."""
    return selectors.find_run(results_folder(results), str(run))


def merge(folders: Sequence[str | Path], *, results: str | Path | None = None) -> list[MergedRun]:
    """Bring runs that were measured elsewhere into `results`: what became of each.

    `folders`: results folders, or runs in them. Raises UnreadableInput for one without runs, CannotWrite.
    """
    return list(merge_runs([Path(each) for each in folders], results_folder(results)))


def share_run(run: str | Path, output: str | Path, *, results: str | Path | None = None) -> SharedRun:
    """A run for others, as `accelbench export RUN --share` writes it into the folder `output`.

    Its command line, tags, logs and paths, and the names of host and user, are left out.
    Raises UnreadableInput, CannotWrite.
    """
    return write_shared(folder(run, results), Path(output))
