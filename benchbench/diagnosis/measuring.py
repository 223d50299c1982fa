"""Measurements of `accelbench doctor`: the best rates of devices, a suite's noise, the self-test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.analyse.roofline import CEILINGS_COMMAND, Ceiling, measured_roofs
from benchbench.analyse.rows import probed_version_and_model
from benchbench.diagnosis import ceilings, noise, selftest
from benchbench.diagnosis.findings import Finding, examine, this_host
from benchbench.errors import AccelbenchError, NothingToMeasure, UnreadableInput, UsageError
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import no_code
from benchbench.machine import amdsmi, nvml
from benchbench.model.case import Case
from benchbench.model.options import MeasureOptions
from benchbench.model.run import RunInfo
from benchbench.model.user_model import CONTEXT
from benchbench.plan.suite import Selection, chosen_threads
from benchbench.running import recording, request
from benchbench.running.measure import Side, measuring
from benchbench.running.observer import RunObserver
from benchbench.running.request import Request
from benchbench.store import disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best rates found, conditions that may have lowered them, and the file where they are stored."""

    found: Sequence[Ceiling]
    notes: Sequence[str]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Selftest:
    """Results of the self-test. `notes`: why a target has no result for a device."""

    results: Sequence[selftest.Result]
    notes: Sequence[str]

    @property
    def passed(self) -> bool:
        """True if every result is right."""
        return all(result.passed for result in self.results)


def examine_machine() -> list[Finding]:
    """Run the checks of this machine, worst finding first."""
    gpus = _connect_gpus()
    try:
        return examine(this_host(gpus))
    finally:
        if not isinstance(gpus, str):
            gpus.close()


def measure_noise(options: MeasureOptions, observer: RunObserver) -> list[noise.Noise]:
    """Measure a suite in twice its rounds and compare the two halves; nothing is stored.

    Raises UsageError, NothingToMeasure.
    """
    noise_request, targets = request.request_on_targets(options)
    doubled = replace(noise_request, policy=noise.double_rounds(noise_request.policy))
    side = Side(targets=targets, settings=noise_request.settings)
    with measuring([side], noise_request.wait_s, None, observer) as measurer:
        info = measurer.plan(doubled)
        (records,) = measurer.record([info])
    return noise.case_noise(info, records)


def measure_ceilings(options: MeasureOptions, observer: RunObserver) -> Ceilings:
    """Measure the best rates of the selected devices, and add them to the user's cache.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    selection = request.selection(options)
    ceilings_request = Request(
        entries=ceilings.entries(
            selection.dtypes or ceilings.DTYPES, chosen_threads(None, selection.threads)
        ),
        selection=selection,
        policy=ceilings.POLICY,
        settings=request.settings(options),
        seed=options.seed,
        command=options.command,
    )
    side = Side(targets=request.requested_targets(options), settings=ceilings_request.settings)
    with measuring([side], options.wait_s, None, observer) as measurer:
        info = measurer.plan(ceilings_request)
        (records,) = measurer.record([info])
        for _ in ceilings.CPU_SIDES[1:]:  # larger products, while the rate grows
            if cases := ceilings.larger_products(records):
                records += measurer.record([replace(info, plan=tuple(cases), left_out=())])[0]
    rates = ceilings.best_rates(info, records)
    if not rates:
        raise NothingToMeasure("No case gave a rate.", "The lines above have the reasons.")
    notes = [note.text for note in ceilings.limiting_conditions(rates, records)]
    return Ceilings(found=rates, notes=notes, path=_store(info, rates))


def measure_missing_memory_rate(pools: Sequence[WorkerPool], info: RunInfo, observer: RunObserver) -> None:
    """Measure and store the memory's rate if the run decodes tokens, whose bound it is, and it is unknown.

    The rate is measured on torch if the run has it. Without a result the bound stays unknown.
    """
    decoding = [case for case in info.plan if CONTEXT in case.params and case.workload in info.models]
    if not decoding:
        return
    try:
        stored = ceilings.read_ceilings(info.machine)
    except UnreadableInput as error:
        observer.note(f"the bound is not known: {error}")
        return
    unknown = [
        case for case in decoding if not measured_roofs(info, case, _model_of(info, case), stored).bytes_per_s
    ]
    if not unknown:
        return
    backends = ["torch"] if any(case.backend == "torch" for case in decoding) else None
    threads = sorted({case.threads for case in unknown if case.threads}) or None
    request_of_rate = Request(
        entries=ceilings.memory_entries(threads, backends),
        selection=Selection(devices=tuple({case.device for case in unknown})),
        policy=ceilings.POLICY,
        settings=info.settings,
        seed=info.seed,
        command=info.command,
    )
    observer.note("measuring the memory's rate, once for this machine: it bounds the tokens per second")
    try:
        rate_info = recording.plan_run(info.probes, request_of_rate)
        (records,) = recording.record_runs(pools, [rate_info], None, RunObserver())
        rates = ceilings.best_rates(rate_info, records)
        _store(info, rates)
        for condition in ceilings.limiting_conditions(rates, records):
            observer.note(
                f"the memory's rate may be too low ({condition.text}): {CEILINGS_COMMAND} repeats it"
            )
    except AccelbenchError as error:
        observer.note(f"the bound is not known: {error}")


def _model_of(info: RunInfo, case: Case) -> str | None:
    """Model of the case's device, as found before the measurement."""
    return probed_version_and_model(info, case)[1]


def _store(info: RunInfo, rates: Sequence[Ceiling]) -> Path:
    """Add rates to the ceilings in the user's cache. Raises UnreadableInput, CannotWrite."""
    path = ceilings.ceilings_file(info.machine)
    stored = ceilings.read_ceilings(info.machine)
    disk.save(path, ceilings.encode(info.machine, ceilings.merge(stored, rates)))
    return path


def run_selftest(options: MeasureOptions, observer: RunObserver) -> Selftest:
    """Measure spins of known length on the host, and on devices if there are any or backends are selected.

    Raises UsageError.
    """
    if len(options.threads) > 1:
        raise UsageError("The self-test spins with one number of threads.", "Give --threads one number.")
    is_selected = bool(options.backends or options.pythons)
    devices = replace(options, backends=options.backends or ("torch",)) if is_selected or _has_gpu() else None
    targets = request.requested_targets(devices) if devices else []
    side = Side(targets=targets, settings=request.settings(options), code=no_code())
    with measuring([side], options.wait_s, None, observer, here=True) as measurer:
        (pool,) = measurer.pools
        measurer.begin()
        observer.note("spinning on the host")
        host = selftest.run_trials("host", None, selftest.HOST, pool.run_job)
        if devices:
            observer.note("looking for devices, and spinning on them")
        on_devices, notes = selftest.on_devices(pool)
    return Selftest(results=[*host, *on_devices], notes=notes)


def _connect_gpus() -> nvml.Nvml | str:
    """The counters of NVIDIA's GPUs, else of AMD's; the reason of the former if there are none."""
    gpus = nvml.connect()
    if not isinstance(gpus, str):
        return gpus
    of_amd = amdsmi.connect()
    return gpus if isinstance(of_amd, str) else of_amd


def _has_gpu() -> bool:
    gpus = nvml.connect()
    if isinstance(gpus, str):
        return False
    try:
        return gpus.count() > 0
    finally:
        gpus.close()
