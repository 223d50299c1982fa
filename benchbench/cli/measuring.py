"""Measuring as a command shows it: a line per record, the summary, and what to type next."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from benchbench.cli.app import signals
from benchbench.cli.profile import save_profiles
from benchbench.cli.screen import screen, tell
from benchbench.errors import NothingToMeasure

if TYPE_CHECKING:
    from benchbench.launch.pool import WorkerPool
    from benchbench.model.case import Case
    from benchbench.model.device import Target
    from benchbench.model.record import Record
    from benchbench.model.run import Policy, Run, RunInfo, Settings


def measured(
    pool: WorkerPool, info: RunInfo, results: Path, *, brief: bool = False, profile: bool = False
) -> list[Record]:
    """Each record is on disk before the next case starts, and shown; `brief`: no hints afterwards."""
    from benchbench.documents import lists
    from benchbench.running import rounds
    from benchbench.store import runs

    tell(lists.left_out(info.left_out))
    if not info.plan:
        raise NothingToMeasure("No case of the selection can run here.", "accelbench devices tells why.")
    records: list[Record] = []
    begin = monotonic()
    with runs.create(results, info) as writer:
        try:
            with screen(info) as shown:
                for record in rounds.measure(pool, info, shown.announce):
                    writer.append(record)
                    records.append(record)
                    shown.show(record)
                if profile:
                    save_profiles(pool, records, results / runs.RUNS / info.id, shown)
        finally:
            typer.echo(lists.summary(records, info, monotonic() - begin), err=True, nl=False)
            if not brief:
                typer.echo(f"time: {lists.time_split(records, pool.stages_s)}", err=True)
                typer.echo(f"next: accelbench {'profile' if profile else 'report'} {info.id}", err=True)
    return records


def measured_again(
    cases: Sequence[Case], policy: Policy, settings: Settings, pythons: Mapping[str, str], results: Path
) -> Run:
    """The very same cases in fresh processes, stored as a run in `results`."""
    from benchbench.launch.pool import WorkerPool
    from benchbench.plan.rerun import again
    from benchbench.running import rounds
    from benchbench.store import runs

    wanted = targets_of(cases, pythons)
    with signals(), WorkerPool(wanted, settings, sys.executable) as pool:
        probes = pool.probe()
        terms = rounds.Terms(policy=policy, settings=settings, seed=None, command=tuple(sys.argv[1:]))
        info = rounds.head(probes, again(cases, probes), terms)
        measured(pool, info, results, brief=True)
    return runs.read(runs.find(results, info.id))


def targets_of(cases: Sequence[Case], pythons: Mapping[str, str]) -> list[Target]:
    """What measured them, by name. Raises UsageError for one that there is no interpreter for."""
    from benchbench.environments.targets import targets

    return targets(list(dict.fromkeys(case.target for case in cases)), pythons, sys.executable)
