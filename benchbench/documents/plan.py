"""The plan of a run as a document, and the lines printed when a run ends.

The plan lists the cases, the omitted cases with reasons, and an estimate of the time based on earlier runs on
this machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any

from benchbench.analyse.roofline import implausible
from benchbench.analyse.rows import records_by_case
from benchbench.documents import document
from benchbench.documents.document import Content, Document, number
from benchbench.documents.short_names import case_cells
from benchbench.errors import UnreadableInput
from benchbench.format import count_of, duration, size
from benchbench.machine.environment import fingerprint, machine
from benchbench.model.case import LeftOut, Status
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.run import Policy, Record, RunInfo
from benchbench.plan.estimates import RunEstimate, device_classes, footprint_bytes, process_s, run_estimate
from benchbench.stats import mean
from benchbench.store import runs, selectors
from benchbench.timing.policy import policy_text

PRIOR_WEIGHT_S = 5.0  # weight of the initial level 1, as seconds of processes that confirm it
MAX_WEIGHT_S = 60.0  # largest weight of all earlier observations, since a machine's load may change
FURTHER = 0.15  # expected time of further rounds of undecided works, as a share of the planned rounds' time


@dataclass(frozen=True, slots=True)
class Expected:
    """Estimated seconds of a case's first process in a run, which compiles, and of each later one."""

    first_s: float
    later_s: float


class TimeLeft:
    """Seconds left of a run, or of two interleaved sides.

    A process of a case is expected to take as long as the case's last process or, before the first one, as
    estimated. Both are scaled by the level: the ratio of measured to expected time, as a mean of logarithms
    weighted by expected time. A busy machine raises the level within a few processes, or before the first
    one if the preparation takes longer than expected.
    """

    def __init__(
        self,
        sides: Sequence[Mapping[str, Expected]],
        rounds: int,
        *,
        preparing_s: float = 0.0,
        budget_s: float = 0.0,
        further: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sides`: estimates by case id, for each side. `preparing_s`: for imports, references, verification.

        `further`: expected time of rounds beyond the planned ones, as a share of the planned time.
        """
        self._estimates = {
            (side, name): estimate for side, cases in enumerate(sides) for name, estimate in cases.items()
        }
        self._remaining = dict.fromkeys(self._estimates, rounds)  # processes
        self._rounds = rounds
        self._base_s = dict[tuple[int, str], float]()  # last time of each measured case, divided by the level
        self._preparing_s = preparing_s
        self._is_prepared = not preparing_s
        self._budget_s = budget_s
        self._further = further
        self._clock = clock
        self._start = self._last = clock()
        self._spent_s = 0.0
        self._log_level, self._weight_s = 0.0, PRIOR_WEIGHT_S
        self.is_further = False  # True during rounds beyond the planned ones
        self._first: tuple[object, ...] = ()  # computation timed before the preparation is complete

    def add(self, record: Record, side: int = 0, *, earlier: bool = False) -> None:
        """Count a finished process. `earlier`: it belongs to an interrupted part of the run."""
        key = (side, record.case.id)
        self.is_further |= record.round >= self._rounds and not self._budget_s
        wall_s = record.stages_s.get("wall", 0.0)
        computation = (record.case.workload, *record.case.params.items())
        if not self._is_prepared and not earlier:
            self._first = self._first or computation
            if computation != self._first:
                self._update_level(self._overhead_s(wall_s), self._preparing_s)
                self._is_prepared = True
        if key in self._estimates:
            estimate = self._estimates[key]
            estimate_s = estimate.later_s if key in self._base_s else estimate.first_s
            self._update_level(wall_s, self._base_s.get(key, estimate_s))
            is_first = key not in self._base_s and estimate.first_s
            later_share = estimate.later_s / estimate.first_s if is_first else 1.0
            self._base_s[key] = later_share * wall_s / math.exp(self._log_level)
            failed = isinstance(record.outcome, Failure)
            self._remaining[key] = 0 if failed else max(self._remaining[key] - 1, 0)
        if earlier:
            self._start -= wall_s  # it counts towards a budget
        self._spent_s += wall_s
        self._last = self._clock()

    @property
    def done(self) -> int:
        """Number of finished processes, including those that are omitted after a failure."""
        return len(self._remaining) * self._rounds - sum(self._remaining.values())

    @property
    def remaining_s(self) -> float:
        """Expected seconds until the run is complete."""
        now = self._clock()
        log_level, preparing_s = self._log_level, 0.0
        if not self._is_prepared:
            overhead_s = self._overhead_s()
            if overhead_s > self._preparing_s * math.exp(log_level):
                log_level, _ = _updated_level(log_level, self._weight_s, overhead_s, self._preparing_s)
            preparing_s = max(self._preparing_s * math.exp(log_level) - overhead_s, 0.0)
        level, processes = math.exp(log_level), sum(self._remaining.values())
        planned_s = 0.0
        for key, count in self._remaining.items():
            estimate = self._estimates[key]
            planned_s += count * level * self._base_s.get(key, estimate.later_s)
            if count and key not in self._base_s:
                planned_s += level * (estimate.first_s - estimate.later_s)
        if self._is_prepared and processes:
            planned_s -= min(now - self._last, planned_s / processes)  # the process that is running
        planned_s *= 1.0 + self._further * processes / max(len(self._remaining) * self._rounds, 1)
        return max(planned_s + preparing_s, self._budget_s - (now - self._start), 0.0)

    def _overhead_s(self, wall_s: float = 0.0) -> float:
        """Seconds so far outside of processes; `wall_s`: seconds of a process that is not counted yet."""
        return max(self._clock() - self._start - self._spent_s - wall_s, 0.0)

    def _update_level(self, measured_s: float, expected_s: float) -> None:
        self._log_level, self._weight_s = _updated_level(
            self._log_level, self._weight_s, measured_s, expected_s
        )


def _updated_level(
    log_level: float, weight_s: float, measured_s: float, expected_s: float
) -> tuple[float, float]:
    """The log level and its weight with one more observation, which has at most half of the weight.

    `expected_s`: time expected at level 1.
    """
    if measured_s <= 0 or expected_s <= 0:
        return log_level, weight_s
    new_weight_s = min(expected_s, weight_s)
    share = new_weight_s / (weight_s + new_weight_s)
    log_level += share * (math.log(measured_s / expected_s) - log_level)
    return log_level, min(weight_s + expected_s, MAX_WEIGHT_S)


RECENT_RUNS = 20  # newest runs read for estimates
ROUNDS = 3  # of each run that are read for estimates
MAX_LINES = 10_000  # records read for estimates, in about 0.2 s
HARMLESS = (Status.OK, Status.UNSUPPORTED)
SIDES = ("A", "B")  # what the two sides of a comparison are called while they are measured
MIN_SETUP_S = 1.0  # shown as a part of a run's time
MIN_SHOWN_S = 0.05  # in the time split: less would round to 0.0 s


def plan_document(
    info: RunInfo, earlier_s: Mapping[str, float] = MappingProxyType({}), *, profile: bool = False
) -> Document:
    """The cases, the omitted cases with reasons, and the estimated time.

    `earlier_s`: mean seconds of a process by case id, from earlier runs on this machine. `profile` includes
    the time of `--profile`.
    """
    classes = device_classes(info.probes)
    estimate = run_estimate(info.plan, info.policy, classes, earlier_s, profile=profile)
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
        [_expected_times(info) for info in infos],
        policy.rounds,
        preparing_s=sum(estimate.importing + estimate.verifying for estimate in estimates),
        budget_s=policy.budget_s or 0.0,
        further=FURTHER if policy.most_rounds and len(infos) == 1 else 0.0,
        clock=clock,
    )


def _expected_times(info: RunInfo) -> dict[str, Expected]:
    """Estimated process times by case id."""
    classes = device_classes(info.probes)
    return {
        case.id: Expected(
            first_s=process_s(case, info.policy, classes, first=True),
            later_s=process_s(case, info.policy, classes),
        )
        for case in info.plan
    }


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A stored run of this machine. Its records are read only on demand."""

    folder: Path
    info: RunInfo


def runs_of_this_machine(results: Path) -> list[EarlierRun]:
    """Newest runs in `results` that were measured on this machine, newest last."""
    this_machine = fingerprint(machine())
    return [run for run in _recent_runs(results) if fingerprint(run.info.machine) == this_machine]


def mean_process_s(earlier: Sequence[EarlierRun], policy: Policy) -> dict[str, float]:
    """Mean seconds of a process by case id, from earlier runs with the same policy.

    Reads only the first rounds of the newest runs, since a run may have millions of records.
    """
    walls_by_case: dict[str, list[float]] = {}
    lines_left = MAX_LINES
    for run in reversed([run for run in earlier if run.info.policy.name == policy.name]):
        lines = min(lines_left, ROUNDS * len(run.info.plan))
        lines_left -= lines
        with suppress(UnreadableInput):
            for case, wall_s in runs.read_walls(run.folder, lines):
                walls_by_case.setdefault(case, []).append(wall_s)
    return {case: mean(walls) for case, walls in walls_by_case.items()}


def _recent_runs(results: Path) -> Iterator[EarlierRun]:
    """Newest readable runs, oldest first; `list runs` reports the unreadable ones."""
    for name in selectors.run_ids(results)[-RECENT_RUNS:]:
        folder = results / runs.RUNS / name
        with suppress(UnreadableInput):
            yield EarlierRun(folder=folder, info=runs.read_head(folder))
