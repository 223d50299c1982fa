"""What `check` measures: the baseline's cases, what looks slower again, or two sides in turn."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchbench.cli.measuring import measured_again, targets_of
from benchbench.cli.turns import measured_in_turn, pools
from benchbench.errors import UsageError

if TYPE_CHECKING:
    from benchbench.analyse.digest import Digest
    from benchbench.gate.confirm import Confirmation
    from benchbench.model.case import Case
    from benchbench.model.run import Run
    from benchbench.plan.rerun import Variant
    from benchbench.running.rounds import Request, Terms

ELSEWHERE = "not measured again, since the run is of another machine: one stage decided"


def held(
    selector: str | None,
    name: str,
    rounds: int | None,
    sides: tuple[Variant, Variant] | None,
    pythons: Mapping[str, str],
    results: Path,
) -> tuple[list[Digest], Run]:
    """The sessions of a baseline, and the run: stored, or measured now as the baseline was."""
    from benchbench.gate import baselines
    from benchbench.machine.environment import machine
    from benchbench.store import runs

    if selector:
        run = runs.read(runs.find(results, selector))
        _only_code(sides, run.info.plan)
        return baselines.sessions(results, name, run.info.machine), run
    sessions = baselines.sessions(results, name, machine())
    _only_code(sides, planned(sessions))
    newest = sessions[-1]
    policy = replace(newest.policy, rounds=rounds or newest.policy.rounds)
    return sessions, measured_again(planned(sessions), policy, newest.settings, pythons, results)


def planned(sessions: Sequence[Digest]) -> list[Case]:
    """Every case that a session could run, as it was planned last."""
    found = {name: side.case for each in sessions for name, side in each.cases.items() if not side.absent}
    return [case for case in found.values() if case]


def both_sides(reference: str, pythons: Mapping[str, str]) -> tuple[Variant, Variant]:
    """The baseline's code as a side, and what is here. Raises UsageError."""
    from benchbench.plan import variants
    from benchbench.plan.rerun import Variant

    found = variants.parse(reference, pythons)
    return found, Variant(text="here")


def _only_code(sides: tuple[Variant, Variant] | None, cases: Sequence[Case]) -> None:
    """Raise UsageError where a side is other than the baseline's code for these cases."""
    if sides is None:
        return
    side = sides[0]
    if side.mode or side.dtype or side.device or side.settings:
        raise UsageError(
            f"{side.text!r} is no code of the baseline.", "Beside --baseline, --ab takes rev:… or NAME=PATH."
        )
    others = {case.backend for case in cases} - {side.target.backend if side.target else ""}
    if side.target and others:
        raise UsageError(
            f"{side.text!r} says nothing of {', '.join(sorted(others))}.", "Hold a run of that backend alone."
        )


def first_in_turn(
    sides: Sequence[Variant],
    backends: Sequence[str],
    pythons: Mapping[str, str],
    request: Request,
    results: Path,
) -> tuple[Run, Run]:
    """What was asked for, measured on both sides."""
    from benchbench.environments.targets import targets
    from benchbench.plan import variants
    from benchbench.running import interleaved

    chosen = targets(backends, pythons, sys.executable) if backends else []
    with pools(sides, variants.sides(sides, chosen, pythons), request.settings) as found:
        return measured_in_turn(found, interleaved.prepare(found, request, sides), results)


def confirmed(
    cases: Sequence[Case],
    new: Digest,
    sides: tuple[Variant, Variant] | None,
    pythons: Mapping[str, str],
    results: Path,
) -> tuple[Confirmation | None, str]:
    """Flagged cases of `new` measured again, with `sides` in turn; where they cannot be, why."""
    from benchbench.analyse.digest import digest, partnered
    from benchbench.comparing.match import LEAST_PROCESSES
    from benchbench.gate.confirm import Confirmation
    from benchbench.machine.environment import fingerprint, machine
    from benchbench.running.rounds import Terms
    from benchbench.store.runs import RUNS

    if fingerprint(machine()) != fingerprint(new.machine):
        return None, ELSEWHERE
    typer.echo(f"{len(cases)} flagged, measuring again: {', '.join(each.id for each in cases)}", err=True)
    policy = replace(new.policy, rounds=max(new.policy.rounds, LEAST_PROCESSES))
    within = results / RUNS / new.id  # or `latest` would be a run of the flagged cases only
    if sides is None:
        return Confirmation(new=digest(measured_again(cases, policy, new.settings, pythons, within))), ""
    terms = Terms(policy=policy, settings=new.settings, seed=None, command=tuple(sys.argv[1:]))
    ref, again = (digest(run) for run in _again_in_turn(cases, sides, terms, pythons, within))
    return Confirmation(new=again, ref=partnered(ref, again)), ""


def _again_in_turn(
    cases: Sequence[Case],
    sides: tuple[Variant, Variant],
    terms: Terms,
    pythons: Mapping[str, str],
    results: Path,
) -> tuple[Run, Run]:
    from benchbench.running import interleaved

    here = targets_of(cases, pythons)
    there = [sides[0].target] if sides[0].target else here
    with pools(sides, (there, here), terms.settings) as found:
        probes = [pool.probe() for pool in found]
        return measured_in_turn(found, interleaved.heads(cases, probes, terms, sides), results)
