"""Doctor's modes that measure: a function for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from benchbench.cli.app import signals
from benchbench.cli.formats import print_document
from benchbench.cli.options import DataFormat, Names, chosen_targets, split
from benchbench.cli.screen import screen, tell
from benchbench.errors import NothingToMeasure

if TYPE_CHECKING:
    from benchbench.launch.pool import WorkerPool
    from benchbench.model.case import Dtype
    from benchbench.model.device import Target
    from benchbench.model.record import Record
    from benchbench.model.run import Policy, RunInfo, Settings
    from benchbench.plan.suite import Entry
    from benchbench.running.rounds import Request


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line narrows a measuring mode to."""

    backend: Names
    python: Names
    device: Names
    dtype: Names
    threads: int | None
    format: DataFormat

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        from benchbench.api import dtype_named

        return tuple(dtype_named(name) for name in split(self.dtype))

    @property
    def settings(self) -> Settings:
        from benchbench.machine.environment import usable_threads
        from benchbench.model.run import Settings

        return Settings(threads=self.threads or usable_threads())

    @property
    def targets(self) -> list[Target]:
        return chosen_targets(self.backend, self.python)

    def request(self, entries: Sequence[tuple[str, Entry]], policy: Policy) -> Request:
        from benchbench.plan.cases import Selection
        from benchbench.running.rounds import Request

        return Request(
            entries=tuple(entries),
            selection=Selection(devices=split(self.device)),
            policy=policy,
            settings=self.settings,
            seed=None,
            command=tuple(sys.argv[1:]),
        )


def ceilings_of(choice: Choice) -> None:
    """Measure, keep and print the best rates of the devices chosen."""
    from benchbench.diagnosis import ceilings
    from benchbench.documents.doctor import ceilings_document
    from benchbench.launch.pool import WorkerPool
    from benchbench.store import disk

    request = choice.request(ceilings.entries(choice.dtypes or ceilings.DTYPES), ceilings.POLICY)
    with signals(), WorkerPool(choice.targets, request.settings, sys.executable) as pool:
        info = _prepared(pool, request)
        records = _climb(pool, info)
    found = ceilings.best(info, records)
    if not found:
        raise NothingToMeasure("No case gave a rate.", "The lines above tell why.")
    kept = ceilings.merged(ceilings.stored(info.machine), found)
    disk.save(ceilings.place(info.machine), ceilings.encoded(info.machine, kept))
    notes = [note.text for note in ceilings.held_down(found, records)]
    print_document(ceilings_document(found, notes), choice.format)
    typer.echo(f"kept in {ceilings.place(info.machine)}", err=True)


def noise_of(name: str, choice: Choice) -> None:
    """Measure a suite in twice its rounds, and print what two halves of them make of each other."""
    from benchbench.diagnosis import noise
    from benchbench.documents.doctor import noise_document
    from benchbench.launch.pool import WorkerPool
    from benchbench.plan import suite
    from benchbench.plan.cases import Selection, select
    from benchbench.timing.policy import POLICIES

    chosen = suite.load(name)
    entries = select([chosen], Selection(dtypes=choice.dtypes))
    request = choice.request(entries, noise.doubled(POLICIES[chosen.policy]))
    with signals(), WorkerPool(choice.targets, request.settings, sys.executable) as pool:
        info = _prepared(pool, request)
        found = noise.against_itself(info, _measured(pool, info))
    if not found:
        raise NothingToMeasure("No case of the suite can run here.", "The lines above tell why.")
    print_document(noise_document(found), choice.format)


def selftested(choice: Choice) -> bool:
    """Print what the pipeline makes of work of known length; whether all of it is right."""
    from benchbench.diagnosis import selftest
    from benchbench.documents.doctor import selftest_document
    from benchbench.launch.pool import WorkerPool

    named = choice.backend or choice.python
    devices = replace(choice, backend=choice.backend or ["torch"]) if named or _has_gpu() else None
    with signals(), WorkerPool(devices.targets if devices else [], choice.settings, sys.executable) as pool:
        typer.echo("spinning on the host", err=True)
        found = selftest.results("host", None, selftest.HOST, pool.ask_plain)
        if devices:
            typer.echo("looking for devices, and spinning on them", err=True)
        more, notes = selftest.on_devices(pool)
    print_document(selftest_document(found + more, notes), choice.format)
    return all(each.passed for each in found + more)


def _has_gpu() -> bool:
    from benchbench.machine import nvml

    gpus = nvml.connect()
    if isinstance(gpus, str):
        return False
    try:
        return gpus.count() > 0
    finally:
        gpus.close()


def _prepared(pool: WorkerPool, request: Request) -> RunInfo:
    """The head of a run that is not kept; what it leaves out is told."""
    from benchbench.documents import lists
    from benchbench.running import rounds

    typer.echo("looking for backends and devices", err=True)
    info = rounds.prepare(pool, request)
    tell(lists.left_out(info.left_out))
    return info


def _climb(pool: WorkerPool, info: RunInfo) -> list[Record]:
    """Every product at the smallest size, then larger ones while that gains something."""
    from benchbench.diagnosis import ceilings

    records = _measured(pool, info)
    for _ in ceilings.CPU_SIDES[1:]:
        if cases := ceilings.larger(records):
            records += _measured(pool, replace(info, plan=tuple(cases)))
    return records


def _measured(pool: WorkerPool, info: RunInfo) -> list[Record]:
    """The records of the run's plan, shown as they come."""
    from benchbench.running import rounds

    found = []
    with screen(info) as shown:
        for record in rounds.measure(pool, info, shown.announce):
            found.append(record)
            shown.show(record)
    return found
