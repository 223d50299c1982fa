"""How every verb measures: each record is stored before the next case starts, and told to an observer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

from benchbench.errors import NothingToMeasure
from benchbench.launch.pool import WorkerPool
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.running import profile_pass, rounds
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.store import runs

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
        for side, record in rounds.measure_rounds(pools, infos, observer.stage):
            if writers:
                writers[side].append(record)
            records[side].append(record)
            observer.record(record, side)
        if profile and results:
            _profile(pools[0], records[0], results / runs.RUNS / infos[0].id, observer)
    return records


def check_plans(infos: Sequence[RunInfo]) -> None:
    """Raise NothingToMeasure where the plan, or that of two sides, has no case."""
    if not infos[0].plan:
        one = "No case of the selection can run here."
        raise NothingToMeasure(one if len(infos) == 1 else "No case can run on both sides.", WAYS)


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
