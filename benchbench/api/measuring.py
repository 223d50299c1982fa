"""Functions that measure. All share the same keywords and `options`, as far as they apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from benchbench.analyse import metrics
from benchbench.diagnosis import measuring
from benchbench.diagnosis.findings import Finding
from benchbench.diagnosis.measuring import Ceilings
from benchbench.environments.interpreters import absolute_interpreters
from benchbench.gate.checking import CheckedRun, CheckOptions, run_check
from benchbench.judging import comparison as verdicts
from benchbench.judging.comparison import THRESHOLD, Comparison, valid_threshold
from benchbench.launch import functions
from benchbench.model.device import Probe
from benchbench.model.options import (
    MeasureKeywords,
    MeasureOptions,
    Names,
    requested_options,
    several,
    takes_keywords,
)
from benchbench.model.run import Record, Run, RunInfo
from benchbench.plan import rerun
from benchbench.running import measure
from benchbench.running.observer import Callbacks, RunObserver
from benchbench.running.resume import resume_run
from benchbench.running.sides import measure_sides
from benchbench.store.selectors import results_folder


@takes_keywords()
def run(
    suite: Names = "quick",
    *,
    profile: bool = False,
    resume: bool | str | Path = False,
    results: str | Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Run:
    """Measure a suite as `accelbench run` does, store it in `results`, and return the run.

    Keywords narrow or override the suite; by default all of it is measured. `params` replaces sizes: `{"m":
    [512, 1024]}`; `pythons` sets interpreters of targets: `{"torch@old": "/path/to/python"}`. `preset`: by
    default the suite's; `rounds`: processes per case, or `budget_s`: seconds to spend where intervals are
    widest; `timeout_s`: of a process; `wait_s`: longest wait for an idle machine; `profile`: afterwards,
    profile each case in a separate pass; `resume`: finish an interrupted run instead, the newest (True) or
    the one with that name; `tags`: stored with the run (in a git checkout, `commit` is added). `on_record`
    receives each record once it is stored, `on_stage` the current stage; an `observer` receives all events.
    `options`: all of this in one object, instead of the suite and the keywords. Failed cases are records,
    too. Records that are finished when an exception ends the run, such as KeyboardInterrupt, are stored.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    request = requested_options(run, suite, keywords, options)
    receiver, root = observer or Callbacks(on_record, on_stage), results_folder(results)
    if resume is False:
        prepare = measuring.measure_missing_memory_rate
        return measure.measure_suite(request, root, receiver, profile=profile, prepare=prepare)
    if not options and suite == "quick":
        request = replace(request, suites=())
    return resume_run("" if resume is True else str(resume), request, root, receiver, profile=profile)


@takes_keywords(without=("model", "input"))
def run_model(
    module: Any,
    inputs: Any,
    *,
    name: str = "my_model",
    loss: Callable[..., Any] | None = None,
    targets: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] | None = None,
    profile: bool = False,
    results: str | Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    observer: RunObserver | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Run:
    """Measure a model in memory, for example in a notebook, as `run` measures one in a file.

    `module`: a torch module, a Keras model or its class, a module of flax or equinox, or a pair of a JAX
    function, or a linen module of flax, and its parameters. `inputs`: a function whose parameters are sizes,
    or its result: a tensor, a tuple, or a dict, passed by keyword. `name`: the workload's name. `loss`,
    `targets`, `optimizer`: as in a model file, to measure a training step. All of it is sent by value
    (cloudpickle), and each process creates it again; so the run cannot be resumed. The other keywords are
    those of `run`.

    Raises UsageError, also for objects that cannot be sent, NothingToMeasure, CannotWrite.
    """
    request = requested_options(run_model, (), keywords)
    receiver = observer or Callbacks(on_record, on_stage)
    training = {"loss": loss, "targets": targets, "optimizer": optimizer}
    with functions.model_file(name, module, inputs, training) as file:
        return measure.measure_suite(
            replace(request, model=(str(file),)), results_folder(results), receiver, profile=profile
        )


@takes_keywords()
def dry_run(
    suite: Names = "quick",
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> RunInfo:
    """The head of the run that `run` would store: its `plan`, and the cases `left_out` with reasons.

    Nothing is measured or stored. Raises UsageError.
    """
    request = requested_options(dry_run, suite, keywords, options)
    return measure.plan_suite(request, observer or RunObserver())


@takes_keywords(without=("budget_s", "tags"))
def compare_ab(
    ref: str,
    new: str,
    *,
    suite: Names = "quick",
    metric: str = "latency_s",
    threshold: float = THRESHOLD,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Comparison:
    """Measure two sides interleaved, as `accelbench compare --ab REF NEW` does, and compare pair by pair.

    A side is a change: `mode=compile`, `jax`, `torch@old=/path/to/python`, `rev:main`, or several, separated
    by commas. Both runs are stored in `results`. The other keywords are those of `run`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    request = requested_options(compare_ab, suite, keywords, options)
    quantity, limit = metrics.metric_named(metric), valid_threshold(threshold)
    pythons = absolute_interpreters(request.pythons)
    variants = [rerun.parse_variant(text, pythons) for text in (ref, new)]
    before, after = measure_sides(variants, request, results_folder(results), observer or RunObserver())
    return verdicts.compare_runs(before, after, quantity, limit)


@takes_keywords(without=("budget_s", "tags"))
def check(
    run: str | Path | None = None,
    *,
    baseline: str | None = None,
    ab: str | None = None,
    max_slowdown: str | float | None = None,
    metric: Names = (),
    confirm: bool = True,
    dedicated: bool | None = None,
    strict_env: bool = False,
    suite: Names = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> CheckedRun:
    """Check whether a case is slower than the baseline, as `accelbench check` does.

    `run`: a stored run; by default the baseline's cases are measured now. `ab`: the code to compare with,
    measured interleaved: `rev:main`, `torch=/path/to/python`; without a `baseline`, the cases are those that
    the other keywords select. `max_slowdown`: 0.05 or `5%`. Cases that seem slower are measured again unless
    `confirm` is False.

    Raises UsageError, NotComparable if there is no such baseline for this hardware, UnreadableInput,
    NothingToMeasure, CannotWrite.
    """
    request = CheckOptions(
        measure=requested_options(check, suite, keywords, options),
        results=results_folder(results),
        run=None if run is None else str(run),
        baseline=baseline,
        ab=ab,
        max_slowdown=max_slowdown,
        metrics=several(metric),
        confirm=confirm,
        dedicated=dedicated,
        strict_env=strict_env,
    )
    receiver = observer or RunObserver()
    with measure.described_models(request.measure, receiver):
        return run_check(request, receiver)


@takes_keywords(only=("backends", "pythons"))
def devices(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> list[Probe]:
    """Probe backends and environments: their devices, or why they cannot be used.

    `backends` and `pythons` select targets. Raises UsageError.
    """
    request = requested_options(devices, (), keywords, options)
    return measure.probe_targets(request, observer or RunObserver())


def doctor() -> list[Finding]:
    """Findings of `accelbench doctor` about conditions that distort measurements, worst first."""
    return measuring.examine_machine()


@takes_keywords(only=("backends", "pythons", "devices", "dtypes", "threads", "wait_s"))
def measure_ceilings(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Ceilings:
    """Measure and store the best rates of devices, FLOP/s and B/s: `accelbench doctor --ceilings`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    request = requested_options(measure_ceilings, (), keywords, options)
    return measuring.measure_ceilings(request, observer or RunObserver())
