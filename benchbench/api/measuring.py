"""The functions that measure. Keywords and `options` are the same for all, as far as they apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from benchbench.analyse import metrics
from benchbench.diagnosis import measuring
from benchbench.diagnosis.findings import Finding
from benchbench.diagnosis.measuring import Ceilings, Selftest
from benchbench.diagnosis.noise import Noise
from benchbench.environments.targets import absolute_interpreters
from benchbench.errors import member
from benchbench.gate.stages import CheckedRun, CheckOptions, run_check
from benchbench.judging import comparison as verdicts
from benchbench.judging.comparison import THRESHOLD, Comparison, valid_threshold
from benchbench.launch import model_objects
from benchbench.model.device import Probe
from benchbench.model.options import (
    MeasureKeywords,
    MeasureOptions,
    Names,
    Variance,
    asked_of,
    several,
    takes_keywords,
)
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.plan import rerun
from benchbench.running import interleaved, measure
from benchbench.running.observer import Callbacks, RunObserver
from benchbench.running.resume import resume_run
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
    **given: Unpack[MeasureKeywords],
) -> Run:
    """Measure a suite as `accelbench run` does, store it in `results`, and return the run.

    Names narrow or override the suite, none means all; `params` replaces sizes: `{"m": [512, 1024]}`;
    `pythons` gives targets their interpreters: `{"torch@old": "/path/to/python"}`.
    `preset`: else the suite's; `rounds`: processes a case, or `budget_s` to spend
    where intervals are widest; `timeout_s`: of a process; `wait_s`: for an idle machine, at most; `profile`:
    then profile each case, in a pass of its own; `resume`: finish a run instead, the newest that was
    interrupted (True) or the one that it names; `tags`: what to file the run under (in a git checkout,
    `commit` is added). `on_record` gets each record once it is stored, `on_stage` what is under way; an
    `observer` is told everything. `options`: all of this in one object, in place of the suite and the
    keywords. Cases that fail are records too. What is finished when an exception ends the run,
    KeyboardInterrupt among them, is stored.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    asked = asked_of(run, suite, given, options)
    told, root = observer or Callbacks(on_record, on_stage), results_folder(results)
    if resume is False:
        return measure.measure_suite(asked, root, told, profile=profile)
    if not options and suite == "quick":
        asked = replace(asked, suites=())
    return resume_run("" if resume is True else str(resume), asked, root, told, profile=profile)


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
    **given: Unpack[MeasureKeywords],
) -> Run:
    """Measure a model that lives in memory, as in a notebook; as `run` does one of a file.

    `module`: a torch module, a Keras model or the class of one, a module of flax or equinox, or a pair of a
    JAX function, or a module of flax's linen, and its parameters. `inputs`: a function whose parameters are
    sizes, or what it would return: a tensor, a tuple, or a dict, passed by keyword. `name`: what its cases
    are called. `loss`, `targets`, `optimizer`: as a file defines them, for a step of its training. All of
    it is sent by value (cloudpickle), from which each process makes it anew; so its run cannot be resumed.
    The other keywords are those of `run`.

    Raises UsageError for what cannot be sent, too, NothingToMeasure, CannotWrite.
    """
    asked = asked_of(run_model, (), given)
    told = observer or Callbacks(on_record, on_stage)
    training = {"loss": loss, "targets": targets, "optimizer": optimizer}
    with model_objects.written(name, module, inputs, training) as file:
        return measure.measure_suite(
            replace(asked, model=(str(file),)), results_folder(results), told, profile=profile
        )


@takes_keywords()
def dry_run(
    suite: Names = "quick",
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> RunInfo:
    """The head of the run that `run` would make: its `plan`, and what is `left_out` with the reasons.

    Nothing is measured or stored. Raises UsageError.
    """
    asked = asked_of(dry_run, suite, given, options)
    return measure.plan_suite(asked, observer or RunObserver())


@takes_keywords(without=("budget_s", "tags"))
def compare_ab(
    ref: str,
    new: str,
    *,
    suite: Names = "quick",
    metric: str = "latency_s",
    threshold: float = THRESHOLD,
    variance: str = Variance.SHARED,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Comparison:
    """Measure two sides interleaved, as `accelbench compare --ab REF NEW` does, and compare pair by pair.

    A side is what changes: `mode=compile`, `jax`, `torch@old=/path/to/python`, `rev:main`, or several with
    commas. Both runs are stored in `results`. The other keywords are those of `run`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    asked = asked_of(compare_ab, suite, given, options)
    chosen, limit = metrics.metric_named(metric), valid_threshold(threshold)
    pythons = absolute_interpreters(asked.pythons)
    sides = [rerun.parse_variant(text, pythons) for text in (ref, new)]
    before, after = interleaved.measure_sides(
        sides, asked, results_folder(results), observer or RunObserver()
    )
    return verdicts.compare_runs(before, after, chosen, limit, member(Variance, variance))


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
    variance: str = Variance.SHARED,
    strict_env: bool = False,
    suite: Names = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> CheckedRun:
    """Whether anything has become slower than the baseline: the gate of `accelbench check`.

    `run`: a stored one; without it the baseline's cases are measured now. `ab`: the baseline's code, to
    measure interleaved: `rev:main`, `torch=/path/to/python`; without a `baseline`, what the other keywords
    select is measured against that code. `max_slowdown`: 0.05 or `5%`. What looks slower is measured again
    unless `confirm` is False. `variance`: how much sessions vary, judged over all cases, `shared`, or of each
    alone, `own`.

    Raises UsageError, NotComparable where there is no such baseline of this hardware, UnreadableInput,
    NothingToMeasure, CannotWrite.
    """
    asked = CheckOptions(
        measure=asked_of(check, suite, given, options),
        results=results_folder(results),
        run=None if run is None else str(run),
        baseline=baseline,
        ab=ab,
        max_slowdown=max_slowdown,
        metrics=several(metric),
        confirm=confirm,
        dedicated=dedicated,
        variance=member(Variance, variance),
        strict_env=strict_env,
    )
    told = observer or RunObserver()
    with measure.models_described(asked.measure, told):
        return run_check(asked, told)


@takes_keywords(only=("backends", "pythons"))
def devices(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> list[Probe]:
    """What every backend and environment has, or why it cannot be used. `backends` and `pythons` choose.

    Raises UsageError.
    """
    asked = asked_of(devices, (), given, options)
    return measure.probe_targets(asked, observer or RunObserver())


def doctor() -> list[Finding]:
    """What on this machine spoils measurements, as `accelbench doctor` finds it, worst first."""
    return measuring.examine_machine()


@takes_keywords(without=("model", "input", "weights", "max_error", "tags"))
def measure_noise(
    suite: Names = "quick",
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> list[Noise]:
    """How much a suite's processes differ here, case by case: `accelbench doctor --aa SUITE`.

    It is measured in twice its rounds and compared with itself; nothing is stored.
    Raises UsageError, NothingToMeasure.
    """
    asked = asked_of(measure_noise, suite, given, options)
    return measuring.measure_noise(asked, observer or RunObserver())


@takes_keywords(only=("backends", "pythons", "devices", "dtypes", "threads", "wait_s"))
def measure_ceilings(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Ceilings:
    """The best rates of the devices, FLOP/s and B/s, measured and kept: `accelbench doctor --ceilings`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    asked = asked_of(measure_ceilings, (), given, options)
    return measuring.measure_ceilings(asked, observer or RunObserver())


@takes_keywords(only=("backends", "pythons", "threads", "wait_s"))
def selftest(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Selftest:
    """Whether measuring tells the truth here, on work of known length: `accelbench doctor --selftest`.

    Raises UsageError.
    """
    asked = asked_of(selftest, (), given, options)
    return measuring.run_selftest(asked, observer or RunObserver())
