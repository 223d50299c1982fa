"""Function that measures on several machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from benchbench.cluster.fleet import FleetObserver, FleetOptions, FleetResult, MachineChoice, measure_fleet
from benchbench.cluster.messages import BEGIN_S, Deadlines
from benchbench.cluster.ray_cluster import RayCluster
from benchbench.errors import UsageError, unknown
from benchbench.model.options import MeasureKeywords, MeasureOptions, Names, requested_options, takes_keywords
from benchbench.store.selectors import results_folder


@takes_keywords()
def fleet(
    suite: Names = "quick",
    *,
    address: str | None = None,
    each: str = MachineChoice.NODE,
    resume: bool | str = False,
    allow_different: bool = False,
    begin_s: float = BEGIN_S,
    results: str | Path | None = None,
    observer: FleetObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> FleetResult:
    """Measure a suite on every machine of a Ray cluster, as `accelbench fleet` does; stores a run of each.

    `address`: of the cluster, `HOST:PORT`; by default the one of this machine. `each`: `node`, or
    `accelerator-type` for one machine of each type. `resume`: finish an interrupted fleet, the newest (True)
    or the one with that id. `allow_different`: allow different versions of accelbench. `begin_s`: seconds to
    wait for a machine to start. The other keywords are those of `run`. If a machine is lost, another one of
    its type measures its unfinished cases. Every machine needs the same file of a `model`, at the same path.

    Raises UsageError, NothingToMeasure without Ray, a cluster or a machine that answers, CannotWrite,
    UnreadableInput.
    """
    if each not in list(MachineChoice):
        raise UsageError(f"each: {each!r} is not a choice.", unknown("choices", each, [*MachineChoice]))
    measure = requested_options(fleet, suite, keywords, options)
    if resume and not options and suite == "quick":
        measure = replace(measure, suites=())
    fleet_options = FleetOptions(
        measure=measure,
        each=MachineChoice(each),
        resume=None if resume is False else "" if resume is True else resume,
        allow_different=allow_different,
        deadlines=Deadlines(begin_s=begin_s),
    )
    with RayCluster(address) as cluster:
        return measure_fleet(fleet_options, cluster, results_folder(results), observer or FleetObserver())
