"""Completion of an interrupted run by the same versions on the same machine."""

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
from benchbench.model.run import Record, Resumption, Run
from benchbench.plan.commands import why_not_resumed
from benchbench.plan.rerun import replan
from benchbench.plan.revision import commit_tag
from benchbench.redaction import process_redaction
from benchbench.running.measure import Side, described_models, measuring, targets_of
from benchbench.running.observer import RunObserver
from benchbench.store import runs, selectors
from benchbench.store.disk import COMMIT, short
from benchbench.store.runs import Progress, RunWriter

LIST_HINT = "accelbench list runs shows which runs were interrupted."
HARDWARE_FIELDS = ("cpu", "cores", "threads", "cpu_quota", "memory_bytes", "architecture", "accelerators")


def resume_run(
    selector: str,
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
    of_fleet: bool = False,
) -> Run:
    """Complete the run that `selector` names, by default the newest interrupted one, and return it.

    `of_fleet`: the run is part of a fleet, which this machine resumes. Raises UsageError if the run is
    complete, or if the machine, versions or settings differ; UnreadableInput, CannotWrite.
    """
    name = selectors.find_run_id(results, selector) if selector else _newest_interrupted(results)
    folder = results / runs.RUNS / name
    with RunWriter(folder) as writer:
        writer.drop_torn()
        run = runs.read_run(folder)  # read under the writer's lock, so no other process adds records
        _check(run, options, of_fleet=of_fleet)
        side = Side(targets=targets_of(run.info.plan, options.pythons), settings=run.info.settings)
        with (
            described_models(with_models(options, run), observer),
            measuring([side], options.wait_s, results, observer) as measurer,
        ):
            (probes,) = measurer.probe()
            if changes := differences(run, probes):
                message = f"The run {name} cannot be resumed here: {'; '.join(changes)}."
                raise UsageError(message, "Begin a new run, and compare it with this one.")
            started = datetime.now(UTC).isoformat(timespec="seconds")
            part = Resumption(started=started, command=options.command)
            info = dataclasses.replace(run.info, resumed=(*run.info.resumed, part))
            run = dataclasses.replace(run, info=info)
            runs.rewrite_head(folder, run.info)
            measurer.record_missing(run, writer, profile=profile)
    return runs.read_run(folder)


def with_models(options: MeasureOptions, run: Run) -> MeasureOptions:
    """The options with the models that the run measures. Raises UsageError for an unknown model.

    A run may come from anybody, and a model is code, so only models that the user has measured from this
    folder are executed.
    """
    targets = tuple(dict.fromkeys(case.target for case in run.info.plan))
    if options.model or run.info.models:
        settings = run.info.settings
        options = dataclasses.replace(options, input=settings.input or None, weights=settings.weights)
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
    raise UsageError(f"No run in {results / runs.RUNS} was interrupted.", LIST_HINT)


def _check(run: Run, options: MeasureOptions, *, of_fleet: bool) -> None:
    """Raise UsageError if the run cannot be resumed, or not with these options."""
    if run.ended:
        raise UsageError(f"The run {run.info.id} has ended: there is nothing to resume.", LIST_HINT)
    if reason := why_not_resumed(dataclasses.replace(run.info, tags={}) if of_fleet else run.info):
        raise UsageError(f"The run {run.info.id} cannot be resumed: {reason}.", "Measure it again.")
    stored: dict[str, object] = {**dataclasses.asdict(run.info.settings), "seed": run.info.seed}
    for name in options.changed_kept_fields:
        if name not in stored or getattr(options, name) != stored[name]:
            conflict = f"{name} was {stored[name]}" if name in stored else f"{name} cannot be given again"
            raise UsageError(f"A run is resumed as it was begun: {conflict}.", "Leave that option out.")


def differences(run: Run, probes: Sequence[Probe]) -> list[str]:
    """Differences of this machine and its software from those of the run, as texts."""
    left_out = [f"{out.case.id} cannot run: {out.reason}" for out in replan(run.info.plan, probes).left_out]
    return [
        *_hardware_differences(run.info.machine, machine()),
        *(left_out or _version_differences(run, probes)),
    ]


def _hardware_differences(then: Machine, now: Machine) -> Iterator[str]:
    if not same_hardware(then, now):
        for name in HARDWARE_FIELDS:
            yield from _difference(name, getattr(then, name), getattr(now, name))


def _version_differences(run: Run, probes: Sequence[Probe]) -> Iterator[str]:
    info, here = run.info, machine()
    yield from _difference("accelbench", info.version, __version__)
    yield from _difference("Python", info.machine.python, here.python)
    yield from _difference("system", info.machine.os, here.os)
    yield from _difference("commit", short(info.commit), short(commit_tag().get(COMMIT, "")))
    yield from _variable_differences(info.variables)
    then = {probe.target.name: probe for probe in info.probes}
    for probe in probes:
        before = then.get(probe.target.name, Probe(target=probe.target, version=None))
        yield from _difference(probe.target.name, before.version, probe.version)
        devices = {device.name: device.model for device in probe.devices}
        for device in before.devices:
            yield from _difference(device.name, device.model, devices.get(device.name))
    for case in info.plan:
        yield from _workload_difference(case, run.records)


def _variable_differences(then: Mapping[str, str] | None) -> Iterator[str]:
    """Differences of the shell's variables, redacted as in a stored run."""
    redact = process_redaction()
    now = {name: redact(value) for name, value in tuning_variables(os.environ).items()}
    if then is not None:
        for name in sorted(then.keys() | now.keys()):
            yield from _difference(name, then.get(name), now.get(name))


def _workload_difference(case: Case, records: Sequence[Record]) -> Iterator[str]:
    outcomes = (record.outcome for record in records if record.case.id == case.id)
    then = {outcome.workload_version for outcome in outcomes if isinstance(outcome, Measurement)}
    now = catalogue.work_version(case.workload, case.params)
    yield from (f"{case.workload}: version {version}, now {now}" for version in then - {now})


def _difference(name: str, then: object, now: object) -> Iterator[str]:
    if then != now:
        yield f"{name}: {then or 'none'}, now {now or 'none'}"
