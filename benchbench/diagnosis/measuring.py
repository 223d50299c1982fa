"""Measure the best rates of devices: `accelbench doctor --ceilings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.analyse.roofline import CEILINGS_COMMAND, Ceiling, measured_roofs
from benchbench.analyse.rows import probed_version_and_model
from benchbench.diagnosis import ceilings
from benchbench.errors import AccelbenchError, NothingToMeasure, UnreadableInput
from benchbench.launch.pool import WorkerPool
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
