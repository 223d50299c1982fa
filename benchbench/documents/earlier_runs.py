"""What earlier runs on this machine took: the best estimate of what the next one will take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchbench.errors import UnreadableInput
from benchbench.machine.environment import fingerprint, machine
from benchbench.model.measurement import Measurement
from benchbench.model.run import Policy, Run
from benchbench.stats import mean
from benchbench.store import runs, selectors

RECENT = 20  # runs that are looked into


def runs_here(results: Path) -> list[Run]:
    """Of the newest ones in `results`, those that this machine made; the newest last."""
    own = fingerprint(machine())
    return [run for run in _recent(results) if fingerprint(run.info.machine) == own]


def processes_s(earlier: Sequence[Run], policy: Policy) -> dict[str, float]:
    """Case id → what a process of it took where it was measured as long as `policy` measures."""
    taken: dict[str, list[float]] = {}
    for run in earlier:
        if run.info.policy.name == policy.name:
            for record in run.records:
                wall = record.stages_s.get("wall")
                if wall and isinstance(record.outcome, Measurement):
                    taken.setdefault(record.case.id, []).append(wall)
    return {case: mean(walls) for case, walls in taken.items()}


def _recent(results: Path) -> Iterator[Run]:
    """Those that cannot be read are the business of `list runs`."""
    for name in selectors.run_ids(results)[-RECENT:]:
        try:
            yield runs.read_run(results / runs.RUNS / name)
        except UnreadableInput:
            continue
