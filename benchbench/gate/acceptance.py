"""Acceptance of a run as a session of a baseline, and the objections against it."""

from __future__ import annotations

from pathlib import Path

from benchbench.analyse.digest import digest, with_partner_ids
from benchbench.analyse.metrics import METRICS
from benchbench.errors import UsageError
from benchbench.gate import baselines
from benchbench.gate.baselines import Acceptance, Warn
from benchbench.gate.checking import HERE, threshold_rules
from benchbench.judging.check import decide
from benchbench.judging.second_test import Confirmation
from benchbench.judging.session_cases import GatePolicy
from benchbench.judging.sessions import days_of
from benchbench.model.run import Run
from benchbench.model.status import Verdict
from benchbench.plan import config
from benchbench.store import naming, runs, selectors

FAILED_VERDICTS = (Verdict.SLOWER, Verdict.PROVISIONAL, Verdict.BROKEN)


def accept(
    results: Path, name: str, selector: str, warn: Warn, *, replace: bool = False, anyway: bool = False
) -> Acceptance:
    """Add a run to a baseline; with `replace` as the only session of its machine.

    Raises UsageError if there are objections, unless `anyway`; UnreadableInput, CannotWrite.
    """
    folder = selectors.find_run(results, selector)
    if folder.parent.parent.parent == results / runs.RUNS:
        checked_run = folder.parent.parent.name
        raise UsageError(
            f"Run {folder.name} is the second test of {checked_run}, not a run.", f"Name {checked_run}."
        )
    run = runs.read_run(folder)
    session = digest(run)
    if not anyway and (doubts := objections(results, name, folder, run)):
        raise UsageError(
            f"Run {session.id} is not accepted: {'; '.join(doubts)}.",
            "Add --accept to make it part of the baseline anyway.",
        )
    removed = baselines.add_session(results, name, session, warn, replace=replace)
    sessions = baselines.require_sessions(results, name, session.machine)
    days = len(set(days_of([entry.started for entry in sessions])))
    return Acceptance(session=session, removed=removed, runs=len(sessions), days=days)


def objections(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """Reasons against a run as a session.

    Such as uncommitted changes, a side of a comparison, no usable case, or a failed check.
    """
    reasons = []
    measured = [side for side in digest(run).cases.values() if side.rounds]
    if measured and all(side.contended for side in measured):
        reasons.append(
            f"other programs disturbed all of its cases ({measured[0].contended}), so no check can use it"
        )
    if measured and all(side.unsteady == len(side.rounds) for side in measured):
        reasons.append("all of its processes were still warming up, so no check can use it")
    if run.info.commit.endswith(naming.DIRTY):
        commit = naming.short(run.info.commit)
        reasons.append(f"its checkout had uncommitted changes ({commit})")
    if run.info.partner:
        reasons.append(f"it is the side {run.info.partner.label!r} of a comparison")
    if bisection := naming.bisect_of(run.info.tags):
        reasons.append(f"it is a version of the bisection {bisection}")
    if failed_cases := _failed_cases(results, name, folder, run):
        more = f" and {len(failed_cases) - 1} more" if len(failed_cases) > 1 else ""
        reasons.append(f"it fails its check against {name}: {failed_cases[0]}{more}")
    return reasons


def _failed_cases(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """Cases that fail against the present sessions, with the same second test if the run had one."""
    new = digest(run)
    stored = baselines.find_sessions(results, name, new.machine)
    sessions = [session for session in stored if session.id != new.id]
    if not sessions:
        return []
    confirmation = _confirmation(folder)
    rules = threshold_rules(run, config.nearest(Path()), (), baselines.ignore_warning)
    policy = GatePolicy(
        metrics=METRICS[:1],
        thresholds=rules,
        confirm=confirmation is not None,
        interleaved=bool(confirmation and confirmation.ref),
    )
    result = decide(sessions, new, policy, confirmation)
    return [
        f"{finding.case} {finding.verdict}"
        for finding in result.findings
        if finding.verdict in FAILED_VERDICTS
    ]


def _confirmation(folder: Path) -> Confirmation | None:
    """Second measurement of the last check of a run, which is stored in its folder."""
    ids = selectors.run_ids(folder)
    if not ids:
        return None
    digests = [digest(runs.read_run(folder / runs.RUNS / run_id)) for run_id in ids]
    checked = next(
        (entry for entry in reversed(digests) if entry.partner and entry.partner.label == HERE), None
    )
    if checked is None:
        return Confirmation(new=digests[-1])
    ref = next((entry for entry in digests if checked.partner and entry.id == checked.partner.run), None)
    return Confirmation(new=checked, ref=ref and with_partner_ids(ref, checked))
