"""The plan of a run as a document, and the lines printed when a run ends.

The plan lists the cases, the omitted cases with reasons, and an estimate of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import monotonic
from typing import Any

from benchbench.analyse.roofline import implausible
from benchbench.analyse.rows import records_by_case
from benchbench.documents import document
from benchbench.documents.document import Content, Document, number
from benchbench.documents.short_names import case_cells
from benchbench.format import count_of, duration, size
from benchbench.model.case import LeftOut, Status
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.run import Record, RunInfo
from benchbench.plan.estimates import RunEstimate, device_classes, footprint_bytes, process_s, run_estimate
from benchbench.timing.policy import policy_text

PRIOR_S = 5.0  # weight of the estimates against measured times, as seconds of processes


class TimeLeft:
    """Seconds left of a run, or of two interleaved sides.

    A process of a case is expected to take as long as the case's last process. Before the first one, it is
    expected to take the estimated time, scaled by the ratio of measured to estimated time so far.
    """

    def __init__(
        self,
        sides: Sequence[Mapping[str, float]],
        rounds: int,
        *,
        preparing_s: float = 0.0,
        budget_s: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sides`: estimated seconds of a process by case id, for each side.

        `preparing_s`: for imports, references and verification.
        """
        self._estimates = {
            (side, case): seconds for side, cases in enumerate(sides) for case, seconds in cases.items()
        }
        self._remaining = dict.fromkeys(self._estimates, rounds)  # processes
        self._last_s: dict[tuple[int, str], float] = {}  # seconds of each case's last process
        self._measured_s = self._estimated_s = PRIOR_S  # of cases with a process
        self._rounds, self._preparing_s, self._budget_s = rounds, preparing_s, budget_s
        self._clock, self._start = clock, clock()
        self.is_further = False  # True during rounds beyond the planned ones

    def add(self, record: Record, side: int = 0, *, earlier: bool = False) -> None:
        """Count a finished process. `earlier`: it belongs to an interrupted part of the run."""
        key, wall_s = (side, record.case.id), record.stages_s.get("wall", 0.0)
        self.is_further |= record.round >= self._rounds and not self._budget_s
        if key in self._estimates:
            if key not in self._last_s:
                self._measured_s += wall_s
                self._estimated_s += self._estimates[key]
            self._last_s[key] = wall_s
            failed = isinstance(record.outcome, Failure)
            self._remaining[key] = 0 if failed else max(self._remaining[key] - 1, 0)
        if earlier:
            self._start -= wall_s  # it counts towards a budget
        else:
            self._preparing_s = 0.0

    @property
    def done(self) -> int:
        """Number of finished processes, including those that are omitted after a failure."""
        return len(self._remaining) * self._rounds - sum(self._remaining.values())

    @property
    def remaining_s(self) -> float:
        """Expected seconds until the run is complete."""
        elapsed_s = self._clock() - self._start
        level = self._measured_s / self._estimated_s
        planned_s = sum(
            count * self._last_s.get(key, level * self._estimates[key])
            for key, count in self._remaining.items()
        )
        return max(planned_s + max(self._preparing_s - elapsed_s, 0.0), self._budget_s - elapsed_s, 0.0)


HARMLESS = (Status.OK, Status.UNSUPPORTED)
SIDES = ("A", "B")  # what the two sides of a comparison are called while they are measured
MIN_SETUP_S = 1.0  # shown as a part of a run's time
MIN_SHOWN_S = 0.05  # in the time split: less would round to 0.0 s


def plan_document(info: RunInfo, *, profile: bool = False) -> Document:
    """The cases, the omitted cases with reasons, and the estimated time; `profile`: include profiling."""
    estimate = run_estimate(info.plan, info.policy, device_classes(info.probes), profile=profile)
    names = case_cells(case.id for case in info.plan)
    rows: list[dict[str, Content]] = [
        {"case": names[case.id], "at least": number(footprint_bytes(case), "B")} for case in info.plan
    ]
    total = f"{count_of(len(info.plan), 'case')}, {len(info.left_out)} left out"
    if info.plan:
        memory = size(max(footprint_bytes(case) for case in info.plan))
        total += f"; {policy_text(info.policy)}, about {duration(estimate.total)}"
        total += f"; largest case at least {memory} and its framework"
    return Document(
        name="plan",
        title="Plan",
        tables=(document.table(rows, notes=[*left_out_lines(info.left_out), total]),),
        data=_plan_fields(info, estimate),
    )


def _plan_fields(info: RunInfo, estimate: RunEstimate) -> dict[str, Any]:
    return {
        "cases": [{"case": case.id, "bytes": footprint_bytes(case)} for case in info.plan],
        "left_out": [
            {"case": omitted.case.id, "status": omitted.status.value, "reason": omitted.reason}
            for omitted in info.left_out
        ],
        "rounds": info.policy.rounds,
        "budget_s": info.policy.budget_s,
        "estimated_s": estimate.total,
        "estimated_parts_s": asdict(estimate),
    }


def left_out_lines(cases: Sequence[LeftOut]) -> list[str]:
    """One line for each reason, with the number of cases it omits."""
    counts = Counter(
        (omitted.case.target, omitted.case.device, omitted.status.value, omitted.reason) for omitted in cases
    )
    return [
        f"left out: {count} on {target}:{device}, {status}: {reason}"
        for (target, device, status, reason), count in counts.items()
    ]


def left_out_summary(infos: Sequence[RunInfo]) -> list[str]:
    """Omitted cases of a run, or of two interleaved sides: a reason of one side omits the case on both."""
    if len(infos) == 1:
        return left_out_lines(infos[0].left_out)
    counts: Counter[tuple[str, ...]] = Counter()
    for pair in zip(*(info.left_out for info in infos), strict=True):
        reasons = [
            (f"{omitted.case.target}:{omitted.case.device}", side, f"{omitted.status}: {omitted.reason}")
            for side, omitted in zip(SIDES, pair, strict=True)
            if omitted.status is not Status.SKIPPED  # the other side has the reason
        ]
        is_shared = len({(place, reason) for place, _, reason in reasons}) < len(reasons)
        texts = [
            f"on {place}, {reason}" if is_shared else f"on {place} ({side}), {reason}"
            for place, side, reason in reasons
        ]
        counts[tuple(dict.fromkeys(texts))] += 1
    return [f"left out: {count} {'; '.join(texts)}" for texts, count in counts.items()]


def time_left(infos: Sequence[RunInfo], clock: Callable[[], float] = monotonic) -> TimeLeft:
    """Estimate of the time left for a run that starts now, or for two interleaved sides."""
    policy = infos[0].policy
    estimates = [run_estimate(info.plan, policy, device_classes(info.probes)) for info in infos]
    return TimeLeft(
        [
            {case.id: process_s(case, info.policy, device_classes(info.probes)) for case in info.plan}
            for info in infos
        ],
        policy.rounds,
        preparing_s=sum(estimate.importing + estimate.verifying for estimate in estimates),
        budget_s=policy.budget_s or 0.0,
        clock=clock,
    )


def run_summary(records: Sequence[Record], info: RunInfo, wall_s: float, setup_s: float = 0.0) -> str:
    """`12 ok, 1 failed in 40 s   run ID`: counts of the outcomes, with a newline.

    `setup_s`: seconds before the run, which the time includes: `in 52 s (12 s of it before the first heat)`.
    """
    counts = Counter(_outcome(case_records) for case_records in records_by_case(records).values())
    parts = [f"{count} {status}" for status, count in counts.items()] or ["nothing measured"]
    if info.left_out:
        parts.append(f"{len(info.left_out)} left out")
    setup = f" ({duration(setup_s)} of it before the first heat)" if setup_s >= MIN_SETUP_S else ""
    return f"{', '.join(parts)} in {duration(setup_s + wall_s)}{setup}   run {info.id}\n"


def time_split(records: Sequence[Record], shared_s: Mapping[str, float]) -> str:
    """Wall time of a run by activity, longest first; `shared_s` is time not caused by a single case."""
    spent = Counter(shared_s)
    for record in records:
        stages = {name: seconds for name, seconds in record.stages_s.items() if name != "wall"}
        if isinstance(record.outcome, Measurement):
            stages["warm-up"] = sum(record.outcome.warmup_block_s)
            stages["timed"] = sum(record.outcome.block_s)
            stages["timing overhead"] = max(stages.pop("timing") - stages["warm-up"] - stages["timed"], 0.0)
        stages["fork and wait"] = max(record.stages_s.get("wall", 0.0) - sum(stages.values()), 0.0)
        spent.update(stages)
    total = sum(spent.values()) or 1.0
    parts = [
        f"{name.replace('_', ' ')} {seconds:.1f} s ({seconds / total:.0%})"
        for name, seconds in spent.most_common()
        if seconds >= MIN_SHOWN_S
    ]
    return ", ".join(parts) or "too short to tell"


def has_failures(records: Sequence[Record], *, allow_unverified: bool = False) -> bool:
    """True if a case failed, is unverified or has an implausible time; unsupported cases do not count."""
    harmless = {*HARMLESS, *([Status.UNVERIFIED] if allow_unverified else [])}
    return any(_outcome(case_records) not in harmless for case_records in records_by_case(records).values())


def _outcome(records: Sequence[Record]) -> str:
    """Status of a case after its last record; implausible times override `ok`."""
    last = records[-1]
    measurements = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    if isinstance(last.outcome, Measurement) and implausible(last.case, last.device_model, measurements):
        return Status.IMPLAUSIBLE
    if isinstance(last.outcome, Measurement):
        return last.outcome.ending
    return str(last.outcome.status)
