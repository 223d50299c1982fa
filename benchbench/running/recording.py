"""How every verb measures: each record is stored before the next case starts, and told to an observer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

from benchbench.errors import NothingToMeasure
from benchbench.launch.pool import WorkerPool
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.running import profile_pass, rounds
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.store import runs
from benchbench.store.runs import RunWriter

WAYS = "accelbench devices tells why."


def record_runs(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    results: Path | None,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> list[list[Record]]:
    """The records of one run, or of two interleaved ones, stored in `results` if that is not None.

    `profile`: then profile what was measured of the first. Raises NothingToMeasure, CannotWrite; what is
    finished when an exception ends it is stored.
    """
    if not infos[0].plan:
        observer.begin(infos)
    check_plans(infos)
    records: list[list[Record]] = [[] for _ in infos]
    with ExitStack() as stack:
        writers = [stack.enter_context(runs.create_run(results, info)) for info in infos if results]
        stack.enter_context(_observed(pools, infos, records, observer))
        _measure(pools, infos, writers, records, observer)
        if profile and writers:
            _profile(pools[0], records[0], writers[0].folder, observer)
    return records


def check_plans(infos: Sequence[RunInfo]) -> None:
    """Raise NothingToMeasure where the plan, or that of two sides, has no case."""
    if not infos[0].plan:
        one = "No case of the selection can run here."
        raise NothingToMeasure(one if len(infos) == 1 else "No case can run on both sides.", WAYS)


def record_rest(
    pool: WorkerPool, run: Run, writer: RunWriter, observer: RunObserver, *, profile: bool = False
) -> None:
    """What an interrupted run lacks, after the records it has. Raises CannotWrite."""
    records = [list(run.records)]
    with _observed([pool], [run.info], records, observer):
        observer.resume(run.records)
        _measure([pool], [run.info], [writer], records, observer)
        if profile:
            _profile(pool, records[0], writer.folder, observer)


def _measure(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    writers: Sequence[RunWriter],
    records: Sequence[list[Record]],
    observer: RunObserver,
) -> None:
    """Adds to `records`, which may hold those that an earlier part of the run made."""
    for side, record in rounds.measure_rounds(pools, infos, observer.stage, earlier=tuple(records[0])):
        stored = writers[side].append(record) if writers else record
        records[side].append(stored)
        observer.record(stored, side)


@contextmanager
def _observed(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    records: Sequence[Sequence[Record]],
    observer: RunObserver,
) -> Iterator[None]:
    begin = monotonic()
    observer.begin(infos)
    try:
        yield
    finally:
        wall_s = monotonic() - begin
        observer.end(
            [
                RunProgress(info=info, records=made, wall_s=wall_s, stages_s=pool.stages_s)
                for info, made, pool in zip(infos, records, pools, strict=True)
            ]
        )


def _profile(pool: WorkerPool, records: Sequence[Record], folder: Path, observer: RunObserver) -> None:
    for profile in profile_pass.keep_profiles(pool, records, folder, observer.stage):
        observer.profile(profile)
