"""The functions that measure a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from benchbench.errors import UsageError, member
from benchbench.judging import comparison as verdicts
from benchbench.judging.claims import Claim, claimed_seconds
from benchbench.judging.comparison import Comparison
from benchbench.launch.functions import call_named, call_of
from benchbench.model.function import Call
from benchbench.model.options import MeasureKeywords, MeasureOptions, Variance, asked_of, takes_keywords
from benchbench.model.run import Run
from benchbench.running import functions
from benchbench.running.functions import Asked
from benchbench.running.observer import RunObserver
from benchbench.running.request import terms
from benchbench.store.selectors import results_folder

KEYWORDS = (
    *("preset", "rounds", "timeout_s", "wait_s", "threads", "allocator", "isolation", "seed", "tags"),
)
USUAL = "quick"
Function = str | Callable[..., Any]


@takes_keywords(only=KEYWORDS)
def measure(
    function: Function,
    *args: Any,
    setup: Function | None = None,
    backend: str | None = None,
    device: str | None = None,
    name: str = "",
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Run:
    """Measure a function of yours as `accelbench time` does, store that as a run, and return it.

    Each round calls it in a process of its own, which finds it by name, in its file, or has it by value
    (cloudpickle). `function`: it, or where it is: `file.py:name`, `package.module:name`. `setup`: called once
    in each process; what it returns is passed after `args`, a tuple as several arguments, a dict by keyword.
    `backend`: `torch`, `tensorflow`, `jax`, whose work is waited for after each call; else as the result of
    the first call tells; `python`: nothing is waited for. `name`: what its case is called. The other keywords
    are those of `run`.

    Raises UsageError for a function that cannot be sent or leaves its work undone, CannotWrite.
    """
    how = terms(asked_of(measure, (), given, options), USUAL)
    asked = Asked(call=_call(function, args, setup, name), backend=backend, device=device)
    return functions.measure_function(asked, how, results_folder(results), observer or RunObserver())


@takes_keywords(only=KEYWORDS)
def measure_ab(
    ref: Function,
    new: Function,
    *args: Any,
    setup: Function | None = None,
    backend: str | None = None,
    device: str | None = None,
    threshold: float = verdicts.THRESHOLD,
    variance: str = Variance.SHARED,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Comparison:
    """Measure two functions interleaved, as `accelbench time REF NEW` does, and compare them pair by pair.

    Both are called with `args` and with what `setup` returns. Both runs are stored. Keywords are as of
    `measure`. Raises UsageError, CannotWrite.
    """
    how = terms(asked_of(measure_ab, (), given, options), USUAL)
    limit = verdicts.valid_threshold(threshold)
    first, second = (
        Asked(call=_call(each, args, setup), backend=backend, device=device) for each in (ref, new)
    )
    before, after = functions.measure_functions(
        (first, second), how, results_folder(results), observer or RunObserver()
    )
    return verdicts.compare_runs(before, after, threshold=limit, variance=member(Variance, variance))


@takes_keywords(only=KEYWORDS)
def measure_claim(
    function: Function,
    claimed: str | float,
    *args: Any,
    setup: Function | None = None,
    backend: str | None = None,
    device: str | None = None,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> tuple[Run, Claim | None]:
    """Measure a function beside what is claimed of it, as `accelbench time --claims` does.

    `claimed`: seconds a call, or `1.2ms`. The claim tells the factor, and which check explains it; None where
    nothing was measured. Keywords are as of `measure`. Raises UsageError, CannotWrite.
    """
    how = terms(asked_of(measure_claim, (), given, options), USUAL)
    seconds = claimed_seconds(claimed)
    asked = Asked(call=_call(function, args, setup), backend=backend, device=device)
    return functions.measure_claimed(asked, seconds, how, results_folder(results), observer or RunObserver())


def _call(function: Function, arguments: tuple[Any, ...], setup: Function | None, name: str = "") -> Call:
    """Raises UsageError."""
    if isinstance(function, str) and not arguments and not callable(setup):
        found = call_named(function, setup or "")
    elif callable(function) and not isinstance(setup, str):
        found = call_of(function, arguments, setup)
    else:
        raise UsageError(
            "A function given by its name has its setup by name, too, and no arguments.",
            "Pass the function itself, or let setup='make' return the arguments.",
        )
    return found.renamed(name) if name else found
