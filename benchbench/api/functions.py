"""Functions that measure the user's Python functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from benchbench.errors import UsageError
from benchbench.judging import comparison as verdicts
from benchbench.judging.comparison import Claim, Comparison, claimed_speedup
from benchbench.launch.functions import call_named, call_of, model_calls, names_model
from benchbench.machine.variables import check_passed
from benchbench.model.function import Call
from benchbench.model.options import (
    MeasureKeywords,
    MeasureOptions,
    requested_options,
    takes_keywords,
)
from benchbench.model.run import Run
from benchbench.running import functions
from benchbench.running.functions import FunctionRequest
from benchbench.running.observer import RunObserver
from benchbench.running.request import terms
from benchbench.store.selectors import results_folder

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
    request = _request(_call(function, args, setup, name), backend, device, env)
    return functions.measure_function(
        request, measure_terms, results_folder(results), observer or RunObserver()
    )


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
    first, second = (_request(_call(function, args, setup), backend, device, env) for function in (ref, new))
    ref_run, new_run = functions.measure_functions(
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
    chosen = requested_options(check_claim, (), keywords, options)
    if chosen.preset is None and chosen.rounds is None:
        chosen = replace(chosen, rounds=CLAIM_HEATS)
    claim_terms = terms(chosen, DEFAULT_PRESET)
    if isinstance(ref, str) and isinstance(new, str) and names_model(ref) and names_model(new):
        if args or setup is not None:
            raise UsageError("Model files have their own inputs.", "Leave out setup and arguments.")
        calls = model_calls(ref, new)
    else:
        calls = (_call(ref, args, setup), _call(new, args, setup))
    receiver = observer or RunObserver()
    first, second = (_request(call, backend, device, env) for call in calls)
    agreement = functions.compare_results((first, second), claim_terms, receiver)
    ref_run, new_run = functions.measure_functions(
        (first, second), claim_terms, results_folder(results), receiver
    )
    comparison = verdicts.compare_runs(ref_run, new_run, threshold=verdicts.THRESHOLD)
    return Claim(speedup=claimed, agreement=agreement, comparison=comparison)


def _request(call: Call, backend: str | None, device: str | None, env: Sequence[str]) -> FunctionRequest:
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
