"""Python's way in: what the command line does, as functions that print nothing and return its objects.

Everything here can be had from `benchbench` itself, which loads this when it is first asked.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from benchbench.analyse import columns, metrics
from benchbench.analyse.rows import case_key, rows
from benchbench.comparing import attribution, verdicts
from benchbench.comparing.verdicts import THRESHOLD, Comparison
from benchbench.diagnosis import ceilings
from benchbench.environments.targets import chosen
from benchbench.errors import NothingToMeasure, UnreadableInput, UsageError, unknown
from benchbench.launch.pool import WorkerPool
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Cache, Dtype, Scalar
from benchbench.model.measurement import Measurement
from benchbench.model.options import Allocator, Isolation
from benchbench.model.record import Record
from benchbench.model.run import Policy, Run, Settings
from benchbench.plan import config
from benchbench.plan import suite as suites
from benchbench.plan.cases import Selection, select
from benchbench.profiling import tables
from benchbench.profiling.tables import Difference, Table
from benchbench.running import profile_pass
from benchbench.running.rounds import Request, measure, prepare
from benchbench.store import artifacts, runs
from benchbench.store.tags import checked
from benchbench.timing.policy import POLICIES, within

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T", Allocator, Cache, Dtype, Isolation)
Names = str | Sequence[str]
BLOCK_FACTS = (
    "case", "suite", "workload", "backend", "framework_version", "device", "dtype", "mode", "phase",
)  # fmt: skip

Preset = Literal["quick", "default", "rigorous"]


def run(
    suite: Names = "quick",
    *,
    workloads: Names = (),
    backends: Names = (),
    pythons: Mapping[str, str | Path] | None = None,
    devices: Names = (),
    dtypes: Names = (),
    modes: Names = (),
    caches: Names = (),
    params: Mapping[str, Scalar | Sequence[Scalar]] | None = None,
    preset: Preset | None = None,
    rounds: int | None = None,
    budget_s: float | None = None,
    timeout_s: float = 300.0,
    threads: int | None = None,
    allocator: Allocator | str = Allocator.STEADY,
    isolation: Isolation | str = Isolation.FORK,
    seed: int | None = None,
    profile: bool = False,
    tags: Mapping[str, str] | None = None,
    results: str | Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Run:
    """Measure a suite as `accelbench run` does, store it in `results`, and return the run.

    Names narrow or override the suite, none means all; `params` replaces sizes: `{"m": [512, 1024]}`;
    `pythons` gives targets their interpreters: `{"torch@old": "/path/to/python"}`.
    `preset`: else the suite's; `rounds`: processes a case, or `budget_s` to spend
    where intervals are widest; `timeout_s`: of a process; `profile`: then profile each case, in a pass of its
    own; `tags`: what to file the run under (in a git checkout, `commit` is added). `on_record` gets each
    record once it is stored, `on_stage` what is under way. Cases that fail are records too. What is finished
    when an exception ends the run, KeyboardInterrupt among them, is stored.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    wanted = request(
        _names(suite) or ("quick",),
        Selection(
            workloads=_names(workloads),
            devices=_names(devices),
            dtypes=tuple(dtype_named(name) for name in _names(dtypes)),
            modes=_names(modes),
            caches=tuple(cache_named(name) for name in _names(caches)),
            params={name: _values(value) for name, value in (params or {}).items()},
        ),
        Settings(
            threads=threads or usable_threads(),
            allocator=_member(Allocator, allocator),
            isolation=_member(Isolation, isolation),
            timeout_s=timeout_s,
        ),
        preset=preset,
        rounds=rounds,
        budget_s=budget_s,
        seed=seed,
        command=("benchbench.run",),
        tags=tags or {},
    )
    interpreters = [f"{name}={path}" for name, path in (pythons or {}).items()]
    targets = chosen(_names(backends), interpreters, sys.executable)
    with WorkerPool(targets, wanted.settings, sys.executable) as pool:
        info = prepare(pool, wanted)
        if not info.plan:
            raise NothingToMeasure("No case of the selection can run here.", "accelbench devices tells why.")
        with runs.create(_root(results), info) as writer:
            records = []
            for record in measure(pool, info, on_stage or _unheard):
                writer.append(record)
                records.append(record)
                if on_record:
                    on_record(record)
            if profile:
                folder = _root(results) / runs.RUNS / info.id
                for _ in profile_pass.kept(pool, records, folder, on_stage or _unheard):
                    pass
    return load(info.id, results)


def request(
    names: Sequence[str],
    selection: Selection,
    settings: Settings,
    *,
    preset: str | None = None,
    rounds: int | None = None,
    budget_s: float | None = None,
    seed: int | None = None,
    command: tuple[str, ...] = (),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Request:
    """The suites of these names, narrowed; the first one's preset unless one is given. Raises UsageError."""
    chosen = [suites.load(name) for name in names]
    return Request(
        entries=tuple(select(chosen, selection)),
        selection=selection,
        policy=_policy(preset or chosen[0].policy, rounds, budget_s),
        settings=settings,
        seed=seed,
        command=command,
        tags=checked(tags),
    )


def _policy(name: str, rounds: int | None, budget_s: float | None) -> Policy:
    """Rounds that are asked for are those of every case."""
    if budget_s is not None:
        if rounds:
            raise UsageError("Rounds and a budget exclude each other.", "Give one of them.")
        return within(budget_s)
    if name not in POLICIES:
        raise UsageError(f"No preset named {name!r}.", unknown("presets", name, list(POLICIES)))
    if rounds is not None and rounds < 1:
        raise UsageError(f"{rounds} rounds measure nothing.", "Each round is a process a case.")
    return replace(POLICIES[name], rounds=rounds, continue_above=None) if rounds else POLICIES[name]


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
    if not 0 < threshold < 1:
        raise UsageError(f"{threshold!r} is not between 0 and 1.", "Three per cent are 0.03.")
    found = verdicts.compare(before, after, metrics.metric_named(metric), threshold)
    folders = [each for each in sides if isinstance(each, Path)]
    return attribution.blamed(found, *folders) if len(folders) == len(sides) else found


def profile(
    run: Run | str | Path = "latest", *, cases: Names = (), results: str | Path | None = None
) -> list[Table]:
    """The tables of `accelbench profile RUN`: where the time of a step went, by operator, one for each case.

    `cases`: parts of cases' ids, or patterns of whole ones; none means all. Why a case has no profile is in
    the run's `unprofiled`. Raises UsageError, UnreadableInput.
    """
    path = runs.find(_root(results), run.info.id if isinstance(run, Run) else str(run))
    found, _ = artifacts.profiles(path)
    return tables.tables(runs.read(path), tables.chosen(found, _names(cases)))


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


def dtype_named(name: str) -> Dtype:
    """Raises UsageError."""
    return _member(Dtype, name)


def cache_named(name: str) -> Cache:
    """Raises UsageError."""
    return _member(Cache, name)


def _member(kind: type[T], name: str) -> T:
    try:
        return kind(name)
    except ValueError:
        word = kind.__name__.lower()
        hint = unknown(f"{word}s", name, [each.value for each in kind])
        raise UsageError(f"No {word} named {name!r}.", hint) from None


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _values(given: Scalar | Sequence[Scalar]) -> list[Scalar]:
    return [given] if isinstance(given, int | bool | float | str) else list(given)


def _root(results: str | Path | None) -> Path:
    return Path(results or os.environ.get("ACCELBENCH_RESULTS") or "results")


def _unheard(_stage: str) -> None:
    """Nobody asked what is under way."""
