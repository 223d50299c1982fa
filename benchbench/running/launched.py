"""A suite measured by the processes that a launcher started: steps are divided among the devices of all."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchbench.errors import UsageError
from benchbench.format import count_of
from benchbench.launch.joining import gather_followers
from benchbench.launch.launched import Launched
from benchbench.launch.rank_transport import RankTransport
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Run
from benchbench.running import request
from benchbench.running.measure import Team, measuring
from benchbench.running.observer import RunObserver
from benchbench.store import runs


def measure_launched(
    where: Launched,
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> Run:
    """What is asked for, measured by this process, the first one, and its followers; stored in `results`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    for text in options.worlds:
        if text not in ("1", str(where.size)):
            raise UsageError(
                f"A world of {text} is not there: the launcher started {count_of(where.size, 'process')}.",
                "Leave --world out, or start as many as it has.",
            )
    asked, targets = request.request_on_targets(replace(options, worlds=options.worlds or (str(where.size),)))
    with closing(gather_followers(where)) as group:
        if not group.is_even:
            hosts = f"{count_of(where.size, 'process')} on {group.hosts} hosts"
            raise UsageError(f"{hosts} cannot be divided equally.", "Start as many on every host.")
        observer.note(f"{count_of(where.size, 'process')} on {count_of(group.hosts, 'host')}")
        spread = replace(asked, selection=replace(asked.selection, hosts=group.hosts, launched=True))
        team, transport = Team(targets=targets, settings=asked.settings), partial(RankTransport, group)
        with measuring([team], asked.wait_s, results, observer, transport) as bench:
            info = bench.plan(spread)
            bench.record([info], profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)
