"""What a check comes to: a finding per case and metric, and what they stand on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchbench.analyse.digest import Digest
from benchbench.judging.common import CommonFactor
from benchbench.judging.completeness import MissingRecords
from benchbench.judging.confirm import Confirmation
from benchbench.judging.session_cases import GatePolicy
from benchbench.judging.significance import TestResult
from benchbench.model.status import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFinding:
    """One case and metric; a test result is None where nothing was tested.

    `spread` is that of the sessions, as a fraction; where `provisional`, one is assumed too. `heavy_tails`:
    some sessions are far from the rest. `lost`: the case was asked for and cannot run. `reason` says why
    there is no other verdict, or what is suspect. `size`: of what is called, the likely ratio new / ref,
    allowing for that it was called because it looked large.
    """

    case: str
    metric: str
    verdict: Verdict
    flagged: bool
    threshold: float
    threshold_from: str
    spread: float | None
    provisional: bool
    heavy_tails: bool
    first: TestResult | None
    confirmation: TestResult | None
    steady: bool
    stopped_by: tuple[str, ...]
    lost: bool
    reason: str
    size: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """`changes` since the newest session bar nothing; `idle`: thresholds that name no case.

    `missing`: what keeps the run from being complete. `interleaved`: the one session is the baseline's code,
    measured process by process with the run. `common`: what nearly all cases have in common, by the first
    metric, against stored sessions.
    """

    sessions: tuple[Digest, ...]
    new: Digest
    confirmation: Confirmation | None
    policy: GatePolicy
    findings: tuple[CaseFinding, ...]
    missing: tuple[MissingRecords, ...]
    tested: int
    changes: tuple[str, ...]
    idle: tuple[str, ...]
    common: CommonFactor | None = None
    interleaved: bool = False

    @property
    def flagged(self) -> list[str]:
        """The cases that are to be measured again."""
        return list(dict.fromkeys(each.case for each in self.findings if each.flagged))
