"""`accelbench check`: the gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.formats import print_document
from benchbench.cli.options import (
    AllocatorOption,
    BackendOption,
    CacheOption,
    DeviceOption,
    DtypeOption,
    IsolationOption,
    ModeOption,
    Names,
    ParamOption,
    PythonOption,
    QuickOption,
    ResultsOption,
    RigorousOption,
    SeedOption,
    SuiteOption,
    ThreadsOption,
    TimeoutOption,
    WorkloadOption,
    argument,
    interpreters_given,
    option,
    split,
)
from benchbench.cli.outputs import OutOption, outputs, write_outputs
from benchbench.cli.request import requested
from benchbench.errors import UsageError
from benchbench.model.options import Allocator, Isolation

if TYPE_CHECKING:
    from benchbench.gate.cases import Rules
    from benchbench.gate.decide import Check
    from benchbench.model.case import Case
    from benchbench.model.run import Run
    from benchbench.plan.config import Config
    from benchbench.plan.thresholds import Rule
    from benchbench.running.rounds import Request


class GateFormat(StrEnum):
    """What a check can be written as."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


@app.command("check")
def check_(
    run: Annotated[
        str | None, argument("The run to judge. [default: the baseline's cases, measured now]")
    ] = None,
    baseline: Annotated[str | None, option("--baseline", text="The baseline to hold it against.")] = None,
    ab: Annotated[
        str | None, option("--ab", text="The baseline's code, to measure in turn: rev:main, NAME=PATH.")
    ] = None,
    max_slowdown: Annotated[
        str | None, option("--max-slowdown", text="Of every case. [default: the suite's, else 5%]")
    ] = None,
    metric: Annotated[Names, option("--metric", text="What to hold. [default: latency_s]")] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm/--no-confirm", help="Measure what looks slower again.")
    ] = True,
    dedicated: Annotated[
        bool | None, typer.Option("--dedicated/--shared", help="Nobody else works on this machine.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 12 where a case cannot be told.")] = False,
    strict_env: Annotated[
        bool, typer.Option("--strict-env", help="Other versions are not comparable.")
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 though something became slower.")
    ] = False,
    format: Annotated[GateFormat, typer.Option("--format", help="What to write.")] = GateFormat.TERMINAL,
    out: OutOption = None,
    suite: SuiteOption = None,
    rounds: Annotated[int | None, option("--rounds", text="Processes per case, if measured.", min=3)] = None,
    workload: WorkloadOption = None,
    backend: BackendOption = None,
    python: PythonOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    mode: ModeOption = None,
    cache: CacheOption = None,
    param: ParamOption = None,
    quick: QuickOption = False,
    rigorous: RigorousOption = False,
    timeout: TimeoutOption = 300.0,
    threads: ThreadsOption = None,
    allocator: AllocatorOption = Allocator.STEADY,
    isolation: IsolationOption = Isolation.FORK,
    seed: SeedOption = None,
    results: ResultsOption = Path("results"),
) -> None:
    """The gate: has anything become slower than the baseline? Exits 10 if so.

    With --ab and no --baseline, a suite is measured in turn with other code: what to measure is for that.

    Examples: accelbench check --baseline main; accelbench check --ab rev:origin/main --suite quick
    """
    from benchbench.documents import gate
    from benchbench.plan.config import nearest

    config, files = nearest(Path()), outputs(out)
    wanted = _Wanted(
        rules=_rules(config, split(metric), dedicated, strict_env, confirm),
        config=config,
        typed=_typed(max_slowdown),
        suites=split(suite),
        pythons=interpreters_given(python),
        results=results,
    )
    name = baseline or ("" if ab else config.check.baseline or "")
    if name:
        _only_in_turn(workload, backend, device, dtype, mode, cache, param, quick, rigorous, threads, seed)
        found, judged, note = _against_stored(wanted, name, run, ab, rounds)
    elif ab and not run:
        request = requested(
            suite=suite,
            workload=workload,
            device=device,
            dtype=dtype,
            mode=mode,
            cache=cache,
            param=param,
            quick=quick,
            rigorous=rigorous,
            rounds=rounds,
            timeout=timeout,
            threads=threads,
            allocator=allocator,
            isolation=isolation,
            seed=seed,
        )
        found, judged, note = _against_code(wanted, ab, split(backend), request)
    else:
        raise UsageError("Which baseline?", "Give --baseline NAME; accelbench baseline list shows them.")
    ended = gate.Gate(name=name, found=found, strict=strict, exit_zero=exit_zero, note=note)
    print_document(gate.check_document(ended), format)
    write_outputs(files, judged, gate.case_verdicts(found))
    raise typer.Exit(ended.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What holds however the run is come by; `typed` is the threshold on the command line."""

    rules: Rules
    config: Config
    typed: list[Rule]
    suites: tuple[str, ...]
    pythons: dict[str, str]
    results: Path


def _against_stored(
    wanted: _Wanted, name: str, run: str | None, ab: str | None, rounds: int | None
) -> tuple[Check, Run, str]:
    """The check, the run it judged, and why nothing was measured again, if so."""
    from benchbench.analyse.digest import digest
    from benchbench.cli.gating import both_sides, confirmed, held
    from benchbench.gate.decide import check

    sides = both_sides(ab, wanted.pythons) if ab else None
    sessions, judged = held(run, name, rounds, sides, wanted.pythons, wanted.results)
    thresholds = _thresholds(wanted, judged)
    rules = replace(wanted.rules, thresholds=thresholds, in_turn=sides is not None)
    new = digest(judged)
    found = check(sessions, new, rules)
    if not found.flagged:
        return found, judged, ""
    again, note = confirmed(_cases(found), new, sides, wanted.pythons, wanted.results)
    if note:
        rules = replace(rules, confirm=False, in_turn=False)
    return check(sessions, new, rules, again), judged, note


def _against_code(
    wanted: _Wanted, ab: str, backends: tuple[str, ...], request: Request
) -> tuple[Check, Run, str]:
    from benchbench.analyse.digest import digest
    from benchbench.cli.gating import both_sides, confirmed, first_in_turn
    from benchbench.gate.decide import check_in_turn

    sides = both_sides(ab, wanted.pythons)
    before, after = first_in_turn(sides, backends, wanted.pythons, request, wanted.results)
    rules = replace(wanted.rules, thresholds=_thresholds(wanted, after))
    ref, new = digest(before), digest(after)
    found = check_in_turn(ref, new, rules)
    if not found.flagged:
        return found, after, ""
    again, note = confirmed(_cases(found), new, sides, wanted.pythons, wanted.results)
    return check_in_turn(ref, new, rules, again), after, note


def _cases(found: Check) -> list[Case]:
    return [case for name in found.flagged if (case := found.new.cases[name].case)]


def _only_in_turn(*options: object) -> None:
    if any(each is not None and each is not False for each in options):  # a seed may be 0
        raise UsageError(
            "A baseline says what is measured.", "What to measure is for --ab without --baseline."
        )


def _rules(
    config: Config, metrics: tuple[str, ...], dedicated: bool | None, strict_env: bool, confirm: bool
) -> Rules:
    from benchbench.analyse.metrics import metric_named
    from benchbench.gate.cases import Rules
    from benchbench.gate.spread import ASSUMED_DEDICATED, ASSUMED_SHARED

    alone = config.check.dedicated if dedicated is None else dedicated
    wanted = metrics or tuple(config.check.metric) or ("latency_s",)
    return Rules(
        metrics=tuple(metric_named(each) for each in dict.fromkeys(wanted)),
        assumed=ASSUMED_DEDICATED if alone else ASSUMED_SHARED,
        strict_env=strict_env,
        confirm=confirm,
    )


def _typed(limit: str | None) -> list[Rule]:
    from benchbench.plan.thresholds import Rule, fraction

    return [Rule("", fraction(limit), "--max-slowdown")] if limit else []


def _thresholds(wanted: _Wanted, run: Run) -> tuple[Rule, ...]:
    """What is typed, then the project's patterns, the suite's, the project's limit."""
    from benchbench.plan import suite
    from benchbench.plan.config import default_rules, threshold_rules

    if wanted.typed:
        return tuple(wanted.typed)
    planned = dict.fromkeys(case.suite for case in run.info.plan)
    known = [each for each in planned if each in suite.names()]
    found = [suite.load(each) for each in wanted.suites or known]
    for each in planned:
        if not wanted.suites and each not in known and each != "defaults":
            typer.echo(f"suite {each!r} is not found by name: --suite FILE for its thresholds", err=True)
    patterns = [rule for each in found for rule in suite.threshold_rules(each)]
    return (*threshold_rules(wanted.config), *patterns, *default_rules(wanted.config))
