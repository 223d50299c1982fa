"""Operator tables: the seconds of a step by operator and kind, and the differences of two profiles. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice

from benchbench.analyse.rows import rows as rows_of
from benchbench.errors import UnreadableInput, UsageError
from benchbench.model.placement import Strategy
from benchbench.model.profile import Gaps, Operator, Profile, Profiled, RankProfile
from benchbench.model.run import Run
from benchbench.stats import mean, median
from benchbench.traces.spans import is_communication, is_range

DISTURBED = 0.15  # larger relative differences between steps cause a note
NOTABLE = 0.01  # share of a step; smaller operators may belong to the profiler or the allocator
CUT_OFF = 2  # calls that may be cut off, one at either end of the recording


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """An operator in one step: means over the steps. The table is based on `self_s` and `total_s`."""

    name: str
    kind: Kind
    calls: float
    self_s: float
    share: float  # of the step
    total_s: float
    host_self_s: float
    host_total_s: float
    device_self_s: float
    device_total_s: float
    flops: float | None
    bytes: float | None
    allocated_bytes: float | None
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A rank in one step: means over the steps.

    `exposed_s`: the part of `communication_s` without simultaneous computation on the rank. `computing_s`:
    time in operators other than communication; None if unknown.
    """

    rank: int
    device: str
    step_s: float
    communication_s: float
    exposed_s: float
    computing_s: float | None = None

    @property
    def own_s(self) -> float:
        """Time of a step without exposed communication; other ranks may wait for it."""
        return self.step_s - self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """Profile of a case per step. Self times of operators and `idle_s` add up to `step_s`.

    For several ranks, the first one's operators are listed. `communication_s`: time in which data passed
    between devices; `exposed_s`: the part without simultaneous computation; with several ranks, means. None
    without communication. `waiting_shown`: whether communication includes the wait for other ranks; gloo's
    trace of a pipeline lacks it.
    """

    case: str
    work: str
    target: str
    framework_version: str | None
    profiler: str
    steps: int
    step_s: float
    plain_s: float | None  # median of steps just before, in the same process, without the profiler
    measured_s: float | None  # when the case was timed
    on_device: bool
    busy: float  # share of the step with a running operator
    idle_s: float
    gaps: Gaps
    rows: tuple[OperatorRow, ...]
    kinds: dict[str, float]  # kind → seconds
    memory_peak_bytes: int | None
    memory_at_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    traces: tuple[str, ...]
    notes: tuple[str, ...]
    communication_s: float | None
    exposed_s: float | None
    ranks: tuple[RankRow, ...]
    waiting_shown: bool = True

    @property
    def slowest(self) -> RankRow | None:
        """The rank with the most work, not counting waits; None for a single rank, or if unknown."""
        busy = {rank: rank.own_s if self.waiting_shown else rank.computing_s for rank in self.ranks}
        if any(seconds is None for seconds in busy.values()):
            return None
        return max(self.ranks, key=lambda rank: busy[rank] or 0.0, default=None)


def profile_tables(run: Run, profiles: Iterable[Profiled]) -> list[OperatorTable]:
    """Operator tables of the profiled cases of `run`. Raises UnreadableInput if there are none."""
    latency = {row.case.id: row.value("latency_s") for row in rows_of(run)}
    tables = [
        operator_table(profiled, profiled.outcome, latency.get(profiled.case.id))
        for profiled in profiles
        if isinstance(profiled.outcome, Profile)
    ]
    if not tables:
        raise UnreadableInput(
            f"Run {run.info.id} has no profile to show.", "accelbench run --profile creates them."
        )
    return tables


def operator_table(case: Profiled, profile: Profile, measured_s: float | None) -> OperatorTable:
    """Operator table of a case. `measured_s`: time of a step when the case was timed."""
    rows = tuple(_row(operator, profile) for operator in profile.operators)
    kinds: dict[str, float] = defaultdict(float)
    for row in rows:
        kinds[row.kind] += row.self_s
    step_s, ranks = profile.wall_s / profile.steps, rank_rows(profile)
    plain_s = median(profile.plain_step_s) if profile.plain_step_s else None
    return OperatorTable(
        case=case.case.id,
        work=case.case.work,
        target=case.case.target,
        framework_version=case.framework_version,
        profiler=profile.profiler,
        steps=profile.steps,
        step_s=step_s,
        plain_s=plain_s,
        measured_s=measured_s,
        on_device=profile.on_device,
        busy=profile.busy_s / profile.wall_s,
        idle_s=profile.gaps.total_s / profile.steps,
        gaps=profile.gaps,
        rows=rows,
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1])),
        memory_peak_bytes=max(profile.memory_bytes, default=None),
        memory_at_s=profile.memory_at_s,
        memory_bytes=profile.memory_bytes,
        traces=profile.traces,
        notes=(
            *_disturbed(profile.step_s or (step_s,), plain_s, measured_s),
            *islice(_lost(rows, profile.steps), 1),
        ),
        communication_s=_mean_of([rank.communication_s for rank in ranks]),
        exposed_s=_mean_of([rank.exposed_s for rank in ranks]),
        ranks=ranks if profile.ranks else (),
        waiting_shown=profile.on_device or case.case.placement.strategy is not Strategy.PIPELINE,
    )


def rank_rows(profile: Profile) -> tuple[RankRow, ...]:
    """Rows for all ranks; for a profile of one process one row, or none without communication."""
    if profile.ranks:
        return tuple(
            _rank_row(rank, rank_profile, profile.steps) for rank, rank_profile in enumerate(profile.ranks)
        )
    if profile.communication is None:
        return ()
    single = RankProfile(
        device="", wall_s=profile.wall_s, busy_s=profile.busy_s, communication=profile.communication
    )
    return (_rank_row(0, single, profile.steps),)


def _rank_row(rank: int, profile: RankProfile, steps: int) -> RankRow:
    computing_s = profile.communication.computing_s
    return RankRow(
        rank=rank,
        device=profile.device,
        step_s=profile.wall_s / steps,
        communication_s=profile.communication.total_s / steps,
        exposed_s=profile.communication.exposed_s / steps,
        computing_s=None if computing_s is None else computing_s / steps,
    )


def _mean_of(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _row(operator: Operator, profile: Profile) -> OperatorRow:
    steps = profile.steps

    def per_step(total: float | None) -> float | None:
        return None if total is None else total / steps

    self_s = operator.device_self_s if profile.on_device else operator.host_self_s
    return OperatorRow(
        name=operator.name,
        kind=kind(operator.name),
        calls=operator.calls / steps,
        self_s=self_s / steps,
        share=self_s / profile.wall_s,
        total_s=(operator.device_total_s if profile.on_device else operator.host_total_s) / steps,
        host_self_s=operator.host_self_s / steps,
        host_total_s=operator.host_total_s / steps,
        device_self_s=operator.device_self_s / steps,
        device_total_s=operator.device_total_s / steps,
        flops=per_step(operator.flops),
        bytes=per_step(operator.bytes),
        allocated_bytes=per_step(operator.allocated_bytes),
        kernels=operator.kernels,
    )


def _disturbed(blocks: Sequence[float], plain_s: float | None, measured_s: float | None) -> Iterator[str]:
    """Notes on times that differ considerably. `blocks`: seconds per step of each block under the profiler.

    Medians are compared, so that a few slow blocks do not count against the profiler.
    """
    traced_s = median(blocks)
    if plain_s and (difference := _off(traced_s, plain_s)):
        yield f"the profiler made a step {difference}: trust the shares, not the times"
    if difference := _off(sum(blocks) / len(blocks), traced_s):
        yield f"the mean step is {difference} than the median: a few of them were delayed"
    if measured_s and (difference := _off(plain_s or traced_s, measured_s)):
        yield f"without the profiler, a step took {difference} than when it was timed: the machine changed"


def _lost(rows: Iterable[OperatorRow], steps: int) -> Iterator[str]:
    """Notes on lost events: an operator has a fractional number of calls per step, beyond two that may be cut
    off.
    """
    for row in rows:
        if row.share >= NOTABLE and round(abs(row.calls - round(row.calls)) * steps) > CUT_OFF:
            yield f"{row.name} ran {row.calls:.2f} times a step: the profiler may have lost events"


def _off(step_s: float, expected_s: float) -> str:
    """Description of a considerable difference, such as `26% longer`."""
    change = step_s / expected_s - 1
    return f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'}" if abs(change) > DISTURBED else ""


def select_profiles(profiles: Iterable[Profiled], patterns: Sequence[str]) -> list[Profiled]:
    """Select profiles whose case id contains or matches one of `patterns`; by default all. Raises
    UsageError.
    """
    all_profiles = list(profiles)
    selected = [
        profiled
        for profiled in all_profiles
        if not patterns or any(p in profiled.case.id or fnmatchcase(profiled.case.id, p) for p in patterns)
    ]
    if all_profiles and not selected:
        examples = ", ".join(profiled.case.id for profiled in all_profiles[:5])
        raise UsageError(f"No profiled case matches {' or '.join(patterns)}.", f"Profiled cases: {examples}")
    return selected


class Kind(StrEnum):
    """Kinds of operators, for comparison across frameworks."""

    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"
    CONVOLUTION = "convolution"
    PRODUCT = "matrix product"
    NORMALISATION = "normalisation"
    REDUCTION = "reduction"
    COPY = "copy"
    ELEMENTWISE = "elementwise"
    OTHER = "other"


# Parts of names in lower case; `<word>` matches a whole word. The first matching kind applies: XLA names a
# fusion after all its operators, and kinds are ordered by cost.
PARTS = {
    Kind.OPTIMIZER: "optimizer apply(momentum|adam|gradient|rms|ada) _fused_(sgd|ada) _foreach_",
    Kind.CONVOLUTION: "conv(?!ert) <dgrad> <wgrad>",
    Kind.PRODUCT: "gemm gemv matmul fullyconnected attention <(add|b|badd)?b?mm> <dot> <linear>",
    Kind.NORMALISATION: "norm(?!al(?!i)) <mvn>",
    Kind.REDUCTION: "reduc pool softmax select.and.scatter arg(max|min) biasaddgrad nll_ entropy "
    "<sum> <mean> <prod> <sort> <topk>",
    Kind.COPY: "copy memcpy memset transpose reorder permute contiguous clone concat reshape slice gather "
    "scatter <to> <cat> <pad> <stack> <fill_?> <zeros?_?> <tile> <expand>",
    Kind.ELEMENTWISE: "<add(n|v2|c?mul|cdiv)?> <sub(tract)?> <mul(tiply)?> <(real)?div(ide)?> <neg(ate)?> "
    "<abs> <exp> exponential <log> <pow(er)?> sqrt tanh sigmoid relu gelu erf threshold clamp maximum "
    "minimum <select> compare <where> <cast> convert iota dropout bias quantize elementwise eltwise fused "
    "fusion",
}


def _pattern(parts: str) -> re.Pattern[str]:
    words = parts.replace("<", "(?<![a-z])(").replace(">", ")(?![a-z])")
    return re.compile("|".join(words.split()))


PATTERNS = {kind: _pattern(parts) for kind, parts in PARTS.items()}


def kind(name: str) -> Kind:
    """Kind of an operator, by its name."""
    if is_communication(name):
        return Kind.COMMUNICATION
    if is_range(name):
        return Kind.OTHER
    lowered = name.lower()
    return next(
        (operator_kind for operator_kind, pattern in PATTERNS.items() if pattern.search(lowered)), Kind.OTHER
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """Part of the difference of two steps that an operator, or a kind of operators, causes."""

    name: str
    kind: str
    ref_s: float | None  # None: absent
    new_s: float | None
    change_s: float
    share: float | None  # of the whole difference; None if that is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDifference:
    """Difference of two profiles: changes, largest first, and the share that operators explain."""

    ref: OperatorTable
    new: OperatorTable
    change_s: float
    idle_change_s: float
    explained: float | None
    changes: tuple[OperatorChange, ...]


def pairs(
    ref: Sequence[OperatorTable], new: Sequence[OperatorTable]
) -> list[tuple[OperatorTable, OperatorTable]]:
    """Pair profiles of the same case; two single profiles of different cases are a pair, too. Raises
    UsageError.
    """
    after = {table.case: table for table in new}
    matches = [(table, after[table.case]) for table in ref if table.case in after]
    if not matches and len(ref) == len(new) == 1:
        return [(ref[0], new[0])]
    if not matches:
        raise UsageError("No case was profiled in both runs.", "Choose one case of each run with --case.")
    return matches


def difference(ref: OperatorTable, new: OperatorTable) -> ProfileDifference:
    """Difference of two steps by operator; together with the idle time it is complete."""
    total = new.step_s - ref.step_s
    before, after = ({row.name: row for row in side.rows} for side in (ref, new))
    changes = [_change(name, before[name], after[name], total) for name in before.keys() & after.keys()]
    for kind in Kind:
        removed = [row for row in ref.rows if row.kind is kind and row.name not in after]
        added = [row for row in new.rows if row.kind is kind and row.name not in before]
        changes += _unmatched(kind, removed, added, total)
    changes.sort(key=lambda change: (-abs(change.change_s), change.name))
    return ProfileDifference(
        ref=ref,
        new=new,
        change_s=total,
        idle_change_s=new.idle_s - ref.idle_s,
        explained=_share(sum(change.change_s for change in changes), total),
        changes=tuple(changes),
    )


def _change(name: str, ref: OperatorRow | None, new: OperatorRow | None, total: float) -> OperatorChange:
    row = new or ref
    assert row is not None
    change = (new.self_s if new else 0.0) - (ref.self_s if ref else 0.0)
    return OperatorChange(
        name=name,
        kind=row.kind,
        ref_s=ref.self_s if ref else None,
        new_s=new.self_s if new else None,
        change_s=change,
        share=_share(change, total),
    )


def _unmatched(
    kind: Kind, removed: Sequence[OperatorRow], added: Sequence[OperatorRow], total: float
) -> list[OperatorChange]:
    """Changes for operators of one kind that only one side has, combined if both sides have some."""
    if not (removed and added):
        return [_change(row.name, row, None, total) for row in removed] + [
            _change(row.name, None, row, total) for row in added
        ]
    ref_s, new_s = (sum(row.self_s for row in rows) for rows in (removed, added))
    return [
        OperatorChange(
            name=f"{_names(removed)} → {_names(added)}",
            kind=kind,
            ref_s=ref_s,
            new_s=new_s,
            change_s=new_s - ref_s,
            share=_share(new_s - ref_s, total),
        )
    ]


def _names(rows: Sequence[OperatorRow]) -> str:
    largest = max(rows, key=lambda row: row.self_s).name
    return largest if len(rows) == 1 else f"{largest} and {len(rows) - 1} more"


def _share(part: float, total: float) -> float | None:
    return part / total if total else None
