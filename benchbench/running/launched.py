"""Measurement of a suite by the processes of a launcher, with steps divided among all their devices."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchbench.errors import UsageError
from benchbench.format import count_of
from benchbench.launch.joining import gather_followers
from benchbench.launch.launched import Launch
from benchbench.launch.rank_transport import RankTransport
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Run
from benchbench.running import request
from benchbench.running.measure import Side, measuring
from benchbench.running.observer import RunObserver
from benchbench.store import runs


def measure_launched(
    launch: Launch,
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> Run:
    """Measure the requested run by this process, the first one, and its followers. Store it in `results`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    started = count_of(launch.size, "process")
    for text in options.worlds:
        if text not in ("1", str(launch.size)):
            raise UsageError(
                f"A world of {text} is not available: the launcher started {started}.",
                "Leave --world out, or start that many processes.",
            )
    options = replace(options, worlds=options.worlds or (str(launch.size),))
    run_request, targets = request.request_on_targets(options)
    with closing(gather_followers(launch)) as group:
        if not group.is_even:
            hosts = f"{started} on {group.hosts} hosts"
            raise UsageError(f"{hosts} cannot be divided equally.", "Start as many on every host.")
        observer.note(f"{started} on {count_of(group.hosts, 'host')}")
        selection = replace(run_request.selection, hosts=group.hosts, launched=True)
        side, transport = Side(targets=targets, settings=run_request.settings), partial(RankTransport, group)
        with measuring([side], run_request.wait_s, results, observer, transport) as measurer:
            info = measurer.plan(replace(run_request, selection=selection))
            measurer.record([info], profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)
