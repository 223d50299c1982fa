"""Functions that measure. All share the same keywords and `options`, as far as they apply."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from benchbench.analyse import metrics
from benchbench.diagnosis.measuring import measure_missing_memory_rate
from benchbench.environments.interpreters import absolute_interpreters
from benchbench.errors import UsageError
from benchbench.gate.checking import CheckedRun, CheckOptions, run_check
from benchbench.judging import comparison as verdicts
from benchbench.judging.comparison import THRESHOLD, Claim, Comparison, claimed_speedup, valid_threshold
from benchbench.launch.functions import call_named, call_of, model_calls, model_file, names_model
from benchbench.machine.variables import check_passed
from benchbench.model.function import Call
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
from benchbench.running.functions import FunctionRequest, compare_results, measure_function, measure_functions
from benchbench.running.measure import described_models, measure_suite, plan_suite
from benchbench.running.observer import Callbacks, RunObserver
from benchbench.running.request import terms
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
        return measure_suite(request, root, receiver, profile=profile, prepare=measure_missing_memory_rate)
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
    with model_file(name, module, inputs, training) as file:
        return measure_suite(
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
    return plan_suite(request, observer or RunObserver())


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
    with described_models(request.measure, receiver):
        return run_check(request, receiver)


KEYWORDS = (
    *("preset", "rounds", "timeout_s", "wait_s", "threads", "allocator", "isolation", "seed", "tags"),
)
DEFAULT_PRESET = "quick"
CLAIM_HEATS = 8  # enough for an interval of a few per cent on a calm machine
Function = str | Callable[..., Any]


@takes_keywords(only=KEYWORDS)
def measure(
    function: Function,
    *args: Any,
    setup: Function | None = None,
    backend: str | None = None,
    device: str | None = None,
    env: Sequence[str] = (),
    name: str = "",
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Run:
    """Measure a Python function as `accelbench time` does; store and return the run.

    Each round calls the function in a new process, which finds it by name, in its file, or by value
    (cloudpickle). `function`: the function, or its location: `file.py:name`, `package.module:name`. `setup`:
    called once in each process; its result is passed after `args`, a tuple as several arguments, a dict by
    keyword. `backend`: `torch`, `tensorflow` or `jax`, to wait for after each call; `python` waits for
    nothing; by default the framework of the first call's result. `env`: names of environment variables that
    the function reads; its process gets only a few others. `name`: the name of the case. The other keywords
    are those of `run`.

    Raises UsageError for a function that cannot be sent or leaves work unfinished, CannotWrite.
    """
    measure_terms = terms(requested_options(measure, (), keywords, options), DEFAULT_PRESET)
    request = _function_request(_call(function, args, setup, name), backend, device, env)
    return measure_function(request, measure_terms, results_folder(results), observer or RunObserver())


@takes_keywords(only=KEYWORDS)
def measure_ab(
    ref: Function,
    new: Function,
    *args: Any,
    setup: Function | None = None,
    backend: str | None = None,
    device: str | None = None,
    env: Sequence[str] = (),
    threshold: float = verdicts.THRESHOLD,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Comparison:
    """Measure two functions interleaved, as `accelbench time REF NEW` does, and compare them pair by pair.

    Both are called with `args` and the result of `setup`. Both runs are stored. The other keywords are those
    of `measure`. Raises UsageError, CannotWrite.
    """
    measure_terms = terms(requested_options(measure_ab, (), keywords, options), DEFAULT_PRESET)
    threshold = verdicts.valid_threshold(threshold)
    first, second = (
        _function_request(_call(function, args, setup), backend, device, env) for function in (ref, new)
    )
    ref_run, new_run = measure_functions(
        (first, second), measure_terms, results_folder(results), observer or RunObserver()
    )
    return verdicts.compare_runs(ref_run, new_run, threshold=threshold)


@takes_keywords(only=KEYWORDS)
def check_claim(
    ref: Function,
    new: Function,
    *args: Any,
    speedup: float | str,
    setup: Function | None = None,
    backend: str | None = None,
    device: str | None = None,
    env: Sequence[str] = (),
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Claim:
    """Check the claim that `new` is `speedup` times as fast as `ref`, as `accelbench time --claim` does.

    Both are called with equal copies of the same arguments, and their results are compared. Then they are
    measured interleaved, by default in eight heats. `speedup`: a number, or a text such as `2x`. `ref` and
    `new` may be the files of two torch models, `model.py`, which then have the same weights. The other
    arguments are those of `measure_ab`. Raises UsageError, CannotWrite.
    """
    claimed = claimed_speedup(speedup)
    claim_options = requested_options(check_claim, (), keywords, options)
    if claim_options.preset is None and claim_options.rounds is None:
        claim_options = replace(claim_options, rounds=CLAIM_HEATS)
    claim_terms = terms(claim_options, DEFAULT_PRESET)
    if isinstance(ref, str) and isinstance(new, str) and names_model(ref) and names_model(new):
        if args or setup is not None:
            raise UsageError("Model files have their own inputs.", "Leave out setup and arguments.")
        calls = model_calls(ref, new)
    else:
        calls = (_call(ref, args, setup), _call(new, args, setup))
    receiver = observer or RunObserver()
    first, second = (_function_request(call, backend, device, env) for call in calls)
    agreement = compare_results((first, second), claim_terms, receiver)
    ref_run, new_run = measure_functions((first, second), claim_terms, results_folder(results), receiver)
    comparison = verdicts.compare_runs(ref_run, new_run, threshold=verdicts.THRESHOLD)
    return Claim(speedup=claimed, agreement=agreement, comparison=comparison)


def _function_request(
    call: Call, backend: str | None, device: str | None, env: Sequence[str]
) -> FunctionRequest:
    variables = check_passed(env, os.environ)
    return FunctionRequest(call=call, backend=backend, device=device, variables=variables)


def _call(function: Function, arguments: tuple[Any, ...], setup: Function | None, name: str = "") -> Call:
    if isinstance(function, str) and not arguments and not callable(setup):
        call = call_named(function, setup or "")
    elif callable(function) and not isinstance(setup, str):
        call = call_of(function, arguments, setup)
    else:
        raise UsageError(
            "A function given by name takes a setup by name and no arguments.",
            "Pass the function itself, or let setup='make' return the arguments.",
        )
    return call.renamed(name) if name else call
