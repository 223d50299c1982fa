"""A run before and after it is measured: its plan as a document, and how it ended, in a line.

The plan says what would be measured, what is left out and why, and how long it will take. What earlier runs
on this machine took is the best estimate of that.
"""

from __future__ import annotations

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
from benchbench.model.case import LeftOut
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Policy, RunInfo
from benchbench.model.status import Status
from benchbench.plan.costs import footprint_bytes
from benchbench.plan.estimates import RunEstimate, device_classes, process_s, run_estimate
from benchbench.running.time_left import FURTHER, Expected, TimeLeft
from benchbench.stats import mean
from benchbench.store import runs, selectors
from benchbench.timing.policy import policy_text

RECENT = 20  # runs that are looked into
ROUNDS, MOST_LINES = (
    3,
    10_000,
)  # of a run and of all, that tell what processes took: read in a fifth of a second
HARMLESS = (Status.OK, Status.UNSUPPORTED)
SIDES = ("A", "B")  # what the two sides of a comparison are called while they are measured
LEAST_TOLD_S = 0.05  # of the time split: less would read as 0.0 s


def plan_document(
    info: RunInfo, earlier_s: Mapping[str, float] = MappingProxyType({}), *, profile: bool = False
) -> Document:
    """The cases, what is left out and why, and what it will take.

    `earlier_s`: case id → what a process of it took in earlier runs here. `profile`: as `--profile` does.
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
        title="What would be measured",
        tables=(document.table(rows, notes=[*left_out(info.left_out), total]),),
        data=_plan_fields(info, estimate),
    )


def _plan_fields(info: RunInfo, estimate: RunEstimate) -> dict[str, Any]:
    return {
        "cases": [{"case": case.id, "bytes": footprint_bytes(case)} for case in info.plan],
        "left_out": [
            {"case": each.case.id, "status": each.status.value, "reason": each.reason}
            for each in info.left_out
        ],
        "rounds": info.policy.rounds,
        "budget_s": info.policy.budget_s,
        "estimated_s": estimate.total,
        "estimated_parts_s": asdict(estimate),
    }


def left_out(cases: Sequence[LeftOut]) -> list[str]:
    """One line for each reason, with how many cases it leaves out."""
    counted = Counter((each.case.target, each.case.device, each.status.value, each.reason) for each in cases)
    return [
        f"left out: {count} on {target}:{device}, {status}: {reason}"
        for (target, device, status, reason), count in counted.items()
    ]


def left_out_of(infos: Sequence[RunInfo]) -> list[str]:
    """The same of a run, or of two sides: each is without a case that one of them cannot run, told once."""
    if len(infos) == 1:
        return left_out(infos[0].left_out)
    counted: Counter[tuple[str, ...]] = Counter()
    for pair in zip(*(info.left_out for info in infos), strict=True):
        own = [
            (f"{each.case.target}:{each.case.device}", side, f"{each.status}: {each.reason}")
            for side, each in zip(SIDES, pair, strict=True)
            if each.status is not Status.SKIPPED  # whose counterpart tells why
        ]
        alike = len({(place, why) for place, _, why in own}) < len(own)
        told = [f"on {place}, {why}" if alike else f"on {place} ({side}), {why}" for place, side, why in own]
        counted[tuple(dict.fromkeys(told))] += 1
    return [f"left out: {count} {'; '.join(told)}" for told, count in counted.items()]


def time_left(infos: Sequence[RunInfo], clock: Callable[[], float] = monotonic) -> TimeLeft:
    """The time left of a run that begins now, or of two sides that are interleaved."""
    policy = infos[0].policy
    found = [run_estimate(info.plan, policy, device_classes(info.probes)) for info in infos]
    return TimeLeft(
        [_expected(info) for info in infos],
        policy.rounds,
        preparing_s=sum(each.importing + each.verifying for each in found),
        budget_s=policy.budget_s or 0.0,
        further=FURTHER if policy.most_rounds and len(infos) == 1 else 0.0,
        clock=clock,
    )


def _expected(info: RunInfo) -> dict[str, Expected]:
    """Case id → what its processes are estimated to take."""
    classes = device_classes(info.probes)
    return {
        case.id: Expected(
            first_s=process_s(case, info.policy, classes, first=True),
            later_s=process_s(case, info.policy, classes),
        )
        for case in info.plan
    }


def run_summary(records: Sequence[Record], info: RunInfo, wall_s: float) -> str:
    """How many cases ended how."""
    counts = Counter(_ending(found) for found in records_by_case(records).values())
    parts = [f"{count} {status}" for status, count in counts.items()] or ["nothing measured"]
    if info.left_out:
        parts.append(f"{len(info.left_out)} left out")
    return f"{', '.join(parts)} in {duration(wall_s)}   run {info.id}\n"


def time_split(records: Sequence[Record], shared_s: Mapping[str, float]) -> str:
    """Where the wall time of a run went, largest part first; `shared_s` is what no single case caused."""
    spent = Counter(shared_s)
    for record in records:
        stages = {name: each for name, each in record.stages_s.items() if name != "wall"}
        if isinstance(record.outcome, Measurement):
            stages["warm-up"] = sum(record.outcome.warmup_block_s)
            stages["timed"] = sum(record.outcome.block_s)
            stages["timing overhead"] = max(stages.pop("timing") - stages["warm-up"] - stages["timed"], 0.0)
        stages["fork and wait"] = max(record.stages_s.get("wall", 0.0) - sum(stages.values()), 0.0)
        spent.update(stages)
    whole = sum(spent.values()) or 1.0
    told = [(name.replace("_", " "), each) for name, each in spent.most_common() if each >= LEAST_TOLD_S]
    return (
        ", ".join(f"{name} {each:.1f} s ({each / whole:.0%})" for name, each in told) or "too short to tell"
    )


def failing(records: Sequence[Record], *, allow_unverified: bool = False) -> bool:
    """True if any case failed, was not verified, or has an impossible time; unsupported is no failure."""
    harmless = {*HARMLESS, *([Status.UNVERIFIED] if allow_unverified else [])}
    return any(_ending(case_records) not in harmless for case_records in records_by_case(records).values())


def _ending(records: Sequence[Record]) -> str:
    last = records[-1]
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    if isinstance(last.outcome, Measurement) and implausible(last.case, last.device_model, measured):
        return Status.IMPLAUSIBLE
    if isinstance(last.outcome, Measurement):
        return last.outcome.ending
    return str(last.outcome.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A stored run that this machine made. Its records are read where somebody asks for them."""

    folder: Path
    info: RunInfo


def runs_here(results: Path) -> list[EarlierRun]:
    """The newest runs in `results` that this machine made; the newest last."""
    own = fingerprint(machine())
    return [run for run in _recent(results) if fingerprint(run.info.machine) == own]


def processes_s(earlier: Sequence[EarlierRun], policy: Policy) -> dict[str, float]:
    """What a process of a case took, by its id, where it was measured as long as `policy` measures.

    By the first rounds of the newest runs: a run may have millions of records.
    """
    taken: dict[str, list[float]] = {}
    left = MOST_LINES
    for run in reversed([each for each in earlier if each.info.policy.name == policy.name]):
        lines = min(left, ROUNDS * len(run.info.plan))
        left -= lines
        with suppress(UnreadableInput):
            for case, wall in runs.read_walls(run.folder, lines):
                taken.setdefault(case, []).append(wall)
    return {case: mean(walls) for case, walls in taken.items()}


def _recent(results: Path) -> Iterator[EarlierRun]:
    """The newest runs that can be read; the others are the business of `list runs`."""
    for name in selectors.run_ids(results)[-RECENT:]:
        folder = results / runs.RUNS / name
        with suppress(UnreadableInput):
            yield EarlierRun(folder=folder, info=runs.read_head(folder))
