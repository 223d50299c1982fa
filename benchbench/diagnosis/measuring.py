"""What `accelbench doctor` measures: the best rates of the devices, a suite's noise, work of known length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.analyse.roofline import Ceiling
from benchbench.diagnosis import ceilings, noise, selftest
from benchbench.diagnosis.findings import Finding, examine, this_host
from benchbench.errors import NothingToMeasure, UsageError
from benchbench.launch.project import no_code
from benchbench.machine import nvml
from benchbench.model.options import MeasureOptions
from benchbench.plan.suite import chosen_threads
from benchbench.running import request
from benchbench.running.measure import Team, measuring
from benchbench.running.observer import RunObserver
from benchbench.running.request import Request
from benchbench.store import disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best rates measured now, what may have held them down, and the file that keeps them."""

    found: Sequence[Ceiling]
    notes: Sequence[str]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Selftest:
    """What the pipeline made of work of known length; `notes`: why a target has no result of a device."""

    results: Sequence[selftest.Result]
    notes: Sequence[str]

    @property
    def passed(self) -> bool:
        """Whether every result is right."""
        return all(result.passed for result in self.results)


def examine_machine() -> list[Finding]:
    """What the checks of this machine see, worst first."""
    gpus = nvml.connect()
    try:
        return examine(this_host(gpus))
    finally:
        if not isinstance(gpus, str):
            gpus.close()


def measure_noise(options: MeasureOptions, observer: RunObserver) -> list[noise.Noise]:
    """A suite in twice its rounds, and what two halves of them make of each other; nothing is stored.

    Raises UsageError, NothingToMeasure.
    """
    asked, targets = request.request_on_targets(options)
    doubled = replace(asked, policy=noise.doubled(asked.policy))
    team = Team(targets=targets, settings=asked.settings)
    with measuring([team], asked.wait_s, None, observer) as bench:
        info = bench.plan(doubled)
        (records,) = bench.record([info])
    return noise.against_itself(info, records)


def measure_ceilings(options: MeasureOptions, observer: RunObserver) -> Ceilings:
    """The best rates of the devices chosen, kept in the user's cache beside those known before.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    selection = request.selection(options)
    asked = Request(
        entries=ceilings.entries(
            selection.dtypes or ceilings.DTYPES, chosen_threads(None, selection.threads)
        ),
        selection=selection,
        policy=ceilings.POLICY,
        settings=request.settings(options),
        seed=options.seed,
        command=options.command,
    )
    team = Team(targets=request.requested_targets(options), settings=asked.settings)
    with measuring([team], options.wait_s, None, observer) as bench:
        info = bench.plan(asked)
        (records,) = bench.record([info])
        for _ in ceilings.CPU_SIDES[1:]:  # larger products while that gains something
            if cases := ceilings.larger(records):
                records += bench.record([replace(info, plan=tuple(cases), left_out=())])[0]
    found = ceilings.best(info, records)
    if not found:
        raise NothingToMeasure("No case gave a rate.", "The lines above tell why.")
    path = ceilings.ceilings_file(info.machine)
    disk.save(
        path, ceilings.encoded(info.machine, ceilings.merged(ceilings.read_ceilings(info.machine), found))
    )
    return Ceilings(found=found, notes=[note.text for note in ceilings.held_down(found, records)], path=path)


def run_selftest(options: MeasureOptions, observer: RunObserver) -> Selftest:
    """Spins of known length on the host, and on devices if there are some or backends are named.

    Raises UsageError.
    """
    if len(options.threads) > 1:
        raise UsageError("The self-test spins with one number of threads.", "Give --threads one number.")
    named = bool(options.backends or options.pythons)
    devices = replace(options, backends=options.backends or ("torch",)) if named or _has_gpu() else None
    targets = request.requested_targets(devices) if devices else []
    team = Team(targets=targets, settings=request.settings(options), code=no_code())
    with measuring([team], options.wait_s, None, observer, here=True) as bench:
        (pool,) = bench.pools
        bench.begin()
        observer.note("spinning on the host")
        host = selftest.run_trials("host", None, selftest.HOST, pool.ask_plain)
        if devices:
            observer.note("looking for devices, and spinning on them")
        on_devices, notes = selftest.on_devices(pool)
    return Selftest(results=[*host, *on_devices], notes=notes)


def _has_gpu() -> bool:
    gpus = nvml.connect()
    if isinstance(gpus, str):
        return False
    try:
        return gpus.count() > 0
    finally:
        gpus.close()
