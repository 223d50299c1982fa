"""`accelbench check`: the gate."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchbench.cli.app import app
from benchbench.cli.options import Names, ResultsOption, option, split
from benchbench.errors import UsageError

if TYPE_CHECKING:
    from benchbench.check import Check, Rules
    from benchbench.config import Config
    from benchbench.confirm import Confirmation
    from benchbench.digest import Digest
    from benchbench.model import Case, Run
    from benchbench.thresholds import Rule


class GateFormat(StrEnum):
    """What a check can be written as."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


@app.command("check")
def check_(
    run: Annotated[
        str | None, typer.Argument(help="The run to judge. [default: the baseline's cases, measured now]")
    ] = None,
    baseline: Annotated[str | None, option("--baseline", text="The baseline to hold it against.")] = None,
    max_slowdown: Annotated[
        str | None, option("--max-slowdown", text="Of every case. [default: the suite's, else 5%]")
    ] = None,
    metric: Annotated[Names, option("--metric", text="What to hold. [default: latency_s]")] = None,
    suite: Annotated[Names, option("--suite", "-s", text="Suites whose thresholds apply.")] = None,
    rounds: Annotated[int | None, option("--rounds", text="Processes per case, if measured.", min=3)] = None,
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
    results: ResultsOption = Path("results"),
) -> None:
    """The gate: has anything become slower than the baseline? Exits 10 if so.

    Examples: accelbench check --baseline main; accelbench check latest --baseline main --max-slowdown 10%
    """
    from benchbench import gate
    from benchbench.check import check
    from benchbench.digest import digest

    config = _config()
    name = baseline or config.check.baseline
    if not name:
        raise UsageError("Which baseline?", "Give --baseline NAME; accelbench baseline list shows them.")
    rules = _rules(config, split(metric), dedicated, strict_env, confirm)
    sessions, judged = _judged(run, name, rounds, results)
    new = digest(judged)
    rules = replace(rules, thresholds=tuple(_thresholds(config, max_slowdown, split(suite), judged)))
    found = check(sessions, new, rules)
    again, note = (None, "") if not (confirm and found.flagged) else _confirmed(found, new, results)
    if again or note:
        rules = replace(rules, confirm=not note)
        found = check(sessions, new, rules, again)
    ended = gate.Gate(name=name, found=found, strict=strict, exit_zero=exit_zero, note=note)
    typer.echo(gate.FORMATS[format](ended), nl=False)
    raise typer.Exit(ended.exit_code)


def _config() -> Config:
    from benchbench import config

    path = config.find(Path())
    return config.load(path) if path else config.Config()


def _rules(
    config: Config, metrics: tuple[str, ...], dedicated: bool | None, strict_env: bool, confirm: bool
) -> Rules:
    from benchbench.check import Rules
    from benchbench.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED
    from benchbench.trend import metric_named

    alone = config.check.dedicated if dedicated is None else dedicated
    wanted = metrics or tuple(config.check.metric) or ("latency_s",)
    return Rules(
        metrics=tuple(metric_named(each) for each in dict.fromkeys(wanted)),
        assumed=ASSUMED_DEDICATED if alone else ASSUMED_SHARED,
        strict_env=strict_env,
        confirm=confirm,
    )


def _thresholds(config: Config, limit: str | None, suites: tuple[str, ...], run: Run) -> list[Rule]:
    """What is typed, then the project's patterns, the suite's, the project's limit."""
    from benchbench import suite
    from benchbench.config import default_rules, threshold_rules
    from benchbench.thresholds import Rule, fraction

    if limit:
        return [Rule("", fraction(limit), "--max-slowdown")]
    planned = dict.fromkeys(case.suite for case in run.info.plan)
    known = [each for each in planned if each in suite.names()]
    found = [suite.load(each) for each in suites or known]
    for each in planned:
        if not suites and each not in known and each != "defaults":
            typer.echo(f"suite {each!r} is not found by name: --suite FILE for its thresholds", err=True)
    patterns = [rule for each in found for rule in suite.threshold_rules(each)]
    return [*threshold_rules(config), *patterns, *default_rules(config)]


def _judged(selector: str | None, name: str, rounds: int | None, results: Path) -> tuple[list[Digest], Run]:
    """The sessions to hold against, and the run: stored, or measured now as the baseline was."""
    from benchbench import baselines, store
    from benchbench.cli.measuring import measured_again
    from benchbench.environment import machine

    if selector:
        run = store.read(store.find(results, selector))
        return baselines.sessions(results, name, run.info.machine), run
    sessions = baselines.sessions(results, name, machine())
    newest = sessions[-1]
    policy = replace(newest.policy, rounds=rounds or newest.policy.rounds)
    return sessions, measured_again(_cases(sessions), policy, newest.settings, results)


def _cases(sessions: list[Digest]) -> list[Case]:
    """Every case that a session could run, as it was planned last."""
    found = {name: side.case for each in sessions for name, side in each.cases.items() if not side.absent}
    return [case for case in found.values() if case]


def _confirmed(found: Check, new: Digest, results: Path) -> tuple[Confirmation | None, str]:
    """What is flagged, measured again; where it cannot be, why."""
    from benchbench.cli.measuring import measured_again
    from benchbench.confirm import Confirmation
    from benchbench.digest import digest
    from benchbench.environment import fingerprint, machine
    from benchbench.matching import LEAST_PROCESSES
    from benchbench.store import RUNS

    if fingerprint(machine()) != fingerprint(new.machine):
        return None, "not measured again, since the run is of another machine: one stage decided"
    cases = [case for name in found.flagged if (case := new.cases[name].case)]
    typer.echo(f"{len(cases)} flagged, measuring again: {', '.join(each.id for each in cases)}", err=True)
    policy = replace(new.policy, rounds=max(new.policy.rounds, LEAST_PROCESSES))
    within = results / RUNS / new.id  # or `latest` would be a run of the flagged cases only
    return Confirmation(new=digest(measured_again(cases, policy, new.settings, within))), ""
