"""Accepting a run as a session of a baseline, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchbench.analyse.digest import Digest, digest, partnered
from benchbench.analyse.metrics import METRICS
from benchbench.errors import UsageError
from benchbench.gate import baselines
from benchbench.gate.baselines import Tell
from benchbench.gate.stages import HERE, thresholds
from benchbench.judging.check import decide
from benchbench.judging.confirm import Confirmation
from benchbench.judging.session_cases import GatePolicy
from benchbench.judging.sessions import days_of
from benchbench.model.run import Run
from benchbench.model.status import Verdict
from benchbench.plan import config
from benchbench.store import runs, selectors, tags

FAILING = (Verdict.SLOWER, Verdict.PROVISIONAL, Verdict.BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A session that was accepted, the ids it displaced, and how many runs and days its machine has now."""

    session: Digest
    dropped: list[str]
    runs: int
    days: int


def accept(
    results: Path, name: str, selector: str, tell: Tell, *, replace: bool = False, anyway: bool = False
) -> Acceptance:
    """Add a run to a baseline; with `replace` as the only session of its machine.

    Raises UsageError for a run that something speaks against, unless it is accepted `anyway`;
    UnreadableInput, CannotWrite.
    """
    folder = selectors.find_run(results, selector)
    if folder.parent.parent.parent == results / runs.RUNS:
        whole = folder.parent.parent.name
        raise UsageError(f"Run {folder.name} is the second test of {whole}, not a run.", f"Name {whole}.")
    run = runs.read_run(folder)
    session = digest(run)
    if not anyway and (doubts := objections(results, name, folder, run)):
        raise UsageError(
            f"Run {session.id} is not accepted: {'; '.join(doubts)}.",
            "Add --accept to make it part of the baseline anyway.",
        )
    dropped = baselines.add_session(results, name, session, tell, replace=replace)
    sessions = baselines.sessions(results, name, session.machine)
    days = len(set(days_of([each.started for each in sessions])))
    return Acceptance(session=session, dropped=dropped, runs=len(sessions), days=days)


def objections(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """Why a run should be no session: changed code, half of a comparison, a check that it fails."""
    doubts = []
    if run.info.commit.endswith(tags.DIRTY):
        commit = tags.short(run.info.commit)
        doubts.append(f"its checkout had uncommitted changes ({commit})")
    if run.info.partner:
        doubts.append(f"it is the side {run.info.partner.label!r} of a comparison")
    if failing := _failing(results, name, folder, run):
        more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        doubts.append(f"it fails its check against {name}: {failing[0]}{more}")
    return doubts


def _failing(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """The cases that fail against the sessions there are, by the same second test if the run had one."""
    new = digest(run)
    stored = baselines.stored_sessions(results, name, new.machine)
    sessions = [each for each in stored if each.id != new.id]
    if not sessions:
        return []
    again = _confirmation(folder)
    rules = thresholds(run, config.nearest(Path()), (), baselines.untold)
    policy = GatePolicy(
        metrics=METRICS[:1],
        thresholds=rules,
        confirm=again is not None,
        interleaved=bool(again and again.ref),
    )
    result = decide(sessions, new, policy, again)
    return [f"{each.case} {each.verdict}" for each in result.findings if each.verdict in FAILING]


def _confirmation(folder: Path) -> Confirmation | None:
    """What the last check of a run measured again, kept within its folder."""
    ids = selectors.run_ids(folder)
    if not ids:
        return None
    again = [digest(runs.read_run(folder / runs.RUNS / each)) for each in ids]
    here = next((each for each in reversed(again) if each.partner and each.partner.label == HERE), None)
    if here is None:
        return Confirmation(new=again[-1])
    ref = next((each for each in again if here.partner and each.id == here.partner.run), None)
    return Confirmation(new=here, ref=ref and partnered(ref, here))
