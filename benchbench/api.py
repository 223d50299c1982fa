"""Python's way in: what the command line does, as functions that print nothing and return its objects.

Everything here can be had from `benchbench` itself, which loads this when it is first asked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from benchbench.analyse import columns, metrics
from benchbench.analyse.rows import case_key, rows
from benchbench.comparing import attribution, verdicts
from benchbench.comparing.verdicts import THRESHOLD, Comparison
from benchbench.diagnosis import ceilings, measuring
from benchbench.diagnosis.findings import Finding
from benchbench.diagnosis.measuring import Ceilings, Selftest
from benchbench.diagnosis.noise import Noise
from benchbench.environments.targets import given as interpreters
from benchbench.errors import UnreadableInput, UsageError
from benchbench.gate.stages import CheckedRun, CheckOptions, run_check
from benchbench.model.device import Probe
from benchbench.model.measurement import Measurement
from benchbench.model.options import (
    MeasureKeywords,
    MeasureOptions,
    Names,
    from_keywords,
    several,
    takes_keywords,
)
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.plan import config, variants
from benchbench.profiling import tables
from benchbench.profiling.tables import Difference, Table
from benchbench.running import interleaved, measure
from benchbench.running.observer import Callbacks, RunObserver
from benchbench.store import artifacts, runs

if TYPE_CHECKING:
    import pandas as pd

BLOCK_FACTS = (
    "case", "suite", "workload", "backend", "framework_version", "device", "dtype", "mode", "phase",
)  # fmt: skip


@takes_keywords()
def run(
    suite: Names = "quick",
    *,
    profile: bool = False,
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
    where intervals are widest; `timeout_s`: of a process; `profile`: then profile each case, in a pass of its
    own; `tags`: what to file the run under (in a git checkout, `commit` is added). `on_record` gets each
    record once it is stored, `on_stage` what is under way; an `observer` is told everything. `options`: all
    of this in one object, in place of the suite and the keywords. Cases that fail are records too. What is
    finished when an exception ends the run, KeyboardInterrupt among them, is stored.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    asked = options or from_keywords(suite, given, "benchbench.run")
    told = observer or Callbacks(on_record, on_stage)
    return measure.measure_suite(asked, _root(results), told, profile=profile)


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
    asked = options or from_keywords(suite, given, "benchbench.dry_run")
    return measure.plan_suite(asked, observer or RunObserver())


def load(run: str | Path = "latest", results: str | Path | None = None) -> Run:
    """A stored run: an id, the start of one, `latest`, `latest~1`, or a run's folder.

    `results`: the folder that keeps runs, `results` or $ACCELBENCH_RESULTS. Raises UnreadableInput.
    """
    return runs.read(runs.find(_root(results), str(run)))


def compare(
    ref: Run | str | Path,
    new: Run | str | Path,
    metric: str = "latency_s",
    threshold: float = THRESHOLD,
    *,
    results: str | Path | None = None,
) -> Comparison:
    """The verdicts of `accelbench compare REF NEW`; runs may be named as in `load`.

    `threshold`: a smaller change is none, 0.03 for 3 %. Of runs that are named, not given, a slower case
    has the operators behind it, where both were profiled. Raises UsageError, UnreadableInput.
    """
    sides = [each if isinstance(each, Run) else runs.find(_root(results), str(each)) for each in (ref, new)]
    before, after = (each if isinstance(each, Run) else runs.read(each) for each in sides)
    found = verdicts.compare(before, after, metrics.metric_named(metric), _threshold(threshold))
    folders = [each for each in sides if isinstance(each, Path)]
    return attribution.blamed(found, *folders) if len(folders) == len(sides) else found


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
    **given: Unpack[MeasureKeywords],
) -> Comparison:
    """Measure two sides interleaved, as `accelbench compare --ab REF NEW` does, and compare pair by pair.

    A side is what changes: `mode=compile`, `jax`, `torch@old=/path/to/python`, `rev:main`, or several with
    commas. Both runs are stored in `results`. The other keywords are those of `run`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    asked = options or from_keywords(suite, given, "benchbench.compare_ab")
    chosen, limit = metrics.metric_named(metric), _threshold(threshold)
    pythons = interpreters(asked.pythons)
    sides = [variants.parse(text, pythons) for text in (ref, new)]
    before, after = interleaved.measure_sides(sides, asked, _root(results), observer or RunObserver())
    return verdicts.compare(before, after, chosen, limit)


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
    **given: Unpack[MeasureKeywords],
) -> CheckedRun:
    """Whether anything has become slower than the baseline: the gate of `accelbench check`.

    `run`: a stored one; without it the baseline's cases are measured now. `ab`: the baseline's code, to
    measure interleaved: `rev:main`, `torch=/path/to/python`; without a `baseline`, what the other keywords
    select is measured against that code. `max_slowdown`: 0.05 or `5%`. What looks slower is measured again
    unless `confirm` is False.

    Raises UsageError, NotComparable where there is no such baseline of this hardware, UnreadableInput,
    NothingToMeasure, CannotWrite.
    """
    asked = CheckOptions(
        measure=options or from_keywords(suite, given, "benchbench.check"),
        results=_root(results),
        run=None if run is None else str(run),
        baseline=baseline,
        ab=ab,
        max_slowdown=max_slowdown,
        metrics=several(metric),
        confirm=confirm,
        dedicated=dedicated,
        strict_env=strict_env,
    )
    return run_check(asked, observer or RunObserver())


def profile(
    run: Run | str | Path = "latest", *, cases: Names = (), results: str | Path | None = None
) -> list[Table]:
    """The tables of `accelbench profile RUN`: where the time of a step went, by operator, one for each case.

    `cases`: parts of cases' ids, or patterns of whole ones; none means all. Why a case has no profile is in
    the run's `unprofiled`. Raises UsageError, UnreadableInput.
    """
    path = runs.find(_root(results), run.info.id if isinstance(run, Run) else str(run))
    found, _ = artifacts.profiles(path)
    return tables.tables(runs.read(path), tables.chosen(found, several(cases)))


def compare_profiles(
    ref: Run | str | Path,
    new: Run | str | Path,
    *,
    cases: Names = (),
    results: str | Path | None = None,
) -> list[Difference]:
    """Those of `accelbench profile REF NEW`: of each case of both, what each operator adds to the difference.

    Where each has one of `cases`, these two are compared, whatever they are.

    Raises UsageError, UnreadableInput.
    """
    before, after = (profile(each, cases=cases, results=results) for each in (ref, new))
    return [tables.difference(*pair) for pair in tables.pairs(before, after)]


def doctor() -> list[Finding]:
    """What on this machine spoils measurements, as `accelbench doctor` finds it, worst first."""
    return measuring.examine_machine()


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
    asked = options or from_keywords((), given, "benchbench.devices")
    return measure.probe_targets(asked, observer or RunObserver())


@takes_keywords(without=("tags",))
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
    asked = options or from_keywords(suite, given, "benchbench.measure_noise")
    return measuring.measure_noise(asked, observer or RunObserver())


@takes_keywords(only=("backends", "pythons", "devices", "dtypes", "threads"))
def measure_ceilings(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Ceilings:
    """The best rates of the devices, FLOP/s and B/s, measured and kept: `accelbench doctor --ceilings`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    asked = options or from_keywords((), given, "benchbench.measure_ceilings")
    return measuring.measure_ceilings(asked, observer or RunObserver())


@takes_keywords(only=("backends", "pythons", "threads"))
def selftest(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Selftest:
    """Whether measuring tells the truth here, on work of known length: `accelbench doctor --selftest`.

    Raises UsageError.
    """
    asked = options or from_keywords((), given, "benchbench.selftest")
    return measuring.run_selftest(asked, observer or RunObserver())


def frame(run: Run, per: Literal["case", "block"] = "case") -> pd.DataFrame:
    """`case`: the rows of `report --format json`. `block`: a row per timed block of each process.

    SI base units. What is not known is missing (NaN among numbers); `notes` of a case say why. A block has
    the columns case, suite, workload, backend, framework_version, device, dtype, mode, phase, round, block
    (from 0) and step_s, the seconds of one step. Cases without a measurement have no blocks.

    Ceilings and prices are those a report on this machine shows; a file of ceilings that cannot be read is
    a warning. Raises UsageError where the nearest accelbench.toml is wrong.
    """
    import pandas as pd

    if per == "block":
        return pd.DataFrame(_blocks(run), columns=[*BLOCK_FACTS, "round", "block", "step_s"])
    try:
        known = ceilings.stored(run.info.machine)
    except UnreadableInput as error:
        warnings.warn(f"{error} {error.hint}", stacklevel=2)
        known = ()
    found = columns.frame(rows(run, known, config.prices(config.nearest(Path()))))
    for name in columns.NUMBERS:
        found[name] = pd.to_numeric(found[name])
    return found


def _blocks(run: Run) -> list[dict[str, Any]]:
    cells = {case_key(row.case): columns.flatten(row) for row in rows(run)}
    facts = {key: {name: row[name] for name in BLOCK_FACTS} for key, row in cells.items()}
    return [
        facts[case_key(record.case)] | {"round": record.round, "block": number, "step_s": step}
        for record in run.records
        if isinstance(record.outcome, Measurement)
        for number, step in enumerate(metrics.steps_s(record.outcome))
    ]


def _threshold(value: float) -> float:
    if not 0 < value < 1:
        raise UsageError(f"{value!r} is not between 0 and 1.", "Three per cent are 0.03.")
    return value


def _root(results: str | Path | None) -> Path:
    return Path(results or os.environ.get("ACCELBENCH_RESULTS") or "results")
