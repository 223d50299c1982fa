"""Finishing an interrupted run: the missing rounds are measured by the same versions on the same machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from benchbench import __version__
from benchbench.errors import UnreadableInput, UsageError
from benchbench.launch import catalogue, user_models
from benchbench.machine.environment import machine, same_hardware
from benchbench.machine.variables import tuning_variables
from benchbench.model.case import Case
from benchbench.model.device import Machine, Probe
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.record import Record
from benchbench.model.run import Resumption, Run
from benchbench.plan.commands import why_not_resumed
from benchbench.plan.rerun import replan
from benchbench.plan.revision import commit_tag
from benchbench.redaction import process_redaction
from benchbench.running.measure import Side, described_models, measuring, targets_of
from benchbench.running.observer import RunObserver
from benchbench.store import runs, selectors
from benchbench.store.naming import COMMIT, short
from benchbench.store.runs import Progress, RunWriter

LIST = "accelbench list runs shows which runs were interrupted."
HARDWARE = ("cpu", "cores", "threads", "cpu_quota", "memory_bytes", "architecture", "accelerators")


def resume_run(
    selector: str,
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
    of_fleet: bool = False,
) -> Run:
    """The run that `selector` names, by default the newest that was interrupted, finished in `results`.

    `of_fleet`: it is part of a fleet, and this is the machine that began it.
    Raises UsageError where it has ended, or where machine, versions or settings are others than they were;
    UnreadableInput, CannotWrite.
    """
    name = selectors.find_run_id(results, selector) if selector else _newest_interrupted(results)
    folder = results / runs.RUNS / name
    with RunWriter(folder) as writer:
        writer.drop_torn()
        run = runs.read_run(folder)  # as it is now that nobody else adds to it
        _check(run, options, of_fleet=of_fleet)
        side = Side(targets=targets_of(run.info.plan, options.pythons), settings=run.info.settings)
        with (
            described_models(with_models(options, run), observer),
            measuring([side], options.wait_s, results, observer) as measurer,
        ):
            (probes,) = measurer.probe()
            if found := differences(run, probes):
                message = f"The run {name} cannot be resumed here: {'; '.join(found)}."
                raise UsageError(message, "Begin a new run, and compare it with this one.")
            started = datetime.now(UTC).isoformat(timespec="seconds")
            part = Resumption(started=started, command=options.command)
            info = dataclasses.replace(run.info, resumed=(*run.info.resumed, part))
            run = dataclasses.replace(run, info=info)
            runs.rewrite_head(folder, run.info)
            measurer.record_missing(run, writer, profile=profile)
    return runs.read_run(folder)


def with_models(options: MeasureOptions, run: Run) -> MeasureOptions:
    """The options with the models that the run measures, if they are known to be the user's own.

    A run may come from anybody, and a model is code: none is executed that was not asked for here. Raises
    UsageError.
    """
    targets = tuple(dict.fromkeys(case.target for case in run.info.plan))
    if options.model or run.info.models:
        begun = run.info.settings
        options = dataclasses.replace(options, input=begun.input or None, weights=begun.weights)
    if options.model or not run.info.models:
        return dataclasses.replace(options, backends=targets)
    user_models.check_known(f"The run {run.info.id}", [*run.info.models.values()])
    return dataclasses.replace(
        options, backends=targets, model=tuple(dict.fromkeys(run.info.models.values()))
    )


def _newest_interrupted(results: Path) -> str:
    for name in reversed(selectors.run_ids(results)):
        folder = results / runs.RUNS / name
        with suppress(UnreadableInput):
            if runs.progress(folder) is Progress.INTERRUPTED and not why_not_resumed(runs.read_head(folder)):
                return name
    raise UsageError(f"No run in {results / runs.RUNS} was interrupted.", LIST)


def _check(run: Run, options: MeasureOptions, *, of_fleet: bool) -> None:
    """Raises UsageError for a run that cannot be resumed, or not with these options."""
    if run.ended:
        raise UsageError(f"The run {run.info.id} has ended: there is nothing to resume.", LIST)
    if reason := why_not_resumed(dataclasses.replace(run.info, tags={}) if of_fleet else run.info):
        raise UsageError(f"The run {run.info.id} cannot be resumed: {reason}.", "Measure it again.")
    kept: dict[str, object] = {**dataclasses.asdict(run.info.settings), "seed": run.info.seed}
    for name in options.changed_kept_fields:
        if name not in kept or getattr(options, name) != kept[name]:
            began = f"{name} was {kept[name]}" if name in kept else f"{name} cannot be given again"
            raise UsageError(f"A run is resumed as it was begun: {began}.", "Leave that option out.")


def differences(run: Run, probes: Sequence[Probe]) -> list[str]:
    """What would make the rest of a run, measured here and now, differ from its beginning."""
    lost = [f"{out.case.id} cannot run: {out.reason}" for out in replan(run.info.plan, probes).left_out]
    return [*_machine(run.info.machine, machine()), *(lost or _versions(run, probes))]


def _machine(then: Machine, now: Machine) -> Iterator[str]:
    if not same_hardware(then, now):
        for name in HARDWARE:
            yield from _differing(name, getattr(then, name), getattr(now, name))


def _versions(run: Run, probes: Sequence[Probe]) -> Iterator[str]:
    info, here = run.info, machine()
    yield from _differing("accelbench", info.version, __version__)
    yield from _differing("Python", info.machine.python, here.python)
    yield from _differing("system", info.machine.os, here.os)
    yield from _differing("commit", short(info.commit), short(commit_tag().get(COMMIT, "")))
    yield from _variables(info.variables)
    then = {probe.target.name: probe for probe in info.probes}
    for probe in probes:
        before = then.get(probe.target.name, Probe(target=probe.target, version=None))
        yield from _differing(probe.target.name, before.version, probe.version)
        devices = {device.name: device.model for device in probe.devices}
        for device in before.devices:
            yield from _differing(device.name, device.model, devices.get(device.name))
    for case in info.plan:
        yield from _workload_version(case, run.records)


def _variables(then: Mapping[str, str] | None) -> Iterator[str]:
    """The shell's variables that differ, as they would be stored now."""
    redact = process_redaction()
    now = {name: redact(value) for name, value in tuning_variables(os.environ).items()}
    if then is not None:
        for name in sorted(then.keys() | now.keys()):
            yield from _differing(name, then.get(name), now.get(name))


def _workload_version(case: Case, records: Sequence[Record]) -> Iterator[str]:
    measured = (record.outcome for record in records if record.case.id == case.id)
    then = {each.workload_version for each in measured if isinstance(each, Measurement)}
    now = catalogue.work_version(case.workload, case.params)
    yield from (f"{case.workload}: version {each}, now {now}" for each in then - {now})


def _differing(name: str, then: object, now: object) -> Iterator[str]:
    if then != now:
        yield f"{name}: {then or 'none'}, now {now or 'none'}"
