"""Stored profiles → the seconds of a step by operator; which operators explain a difference of two. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

from benchbench.analyse.rows import rows as rows_of
from benchbench.errors import UnreadableInput, UsageError
from benchbench.model.profile import Gaps, Operator, Profile, Profiled, RankProfile
from benchbench.model.run import Run
from benchbench.profiling.kinds import Kind, kind
from benchbench.stats import mean, median

DISTURBED = 0.15  # steps that differ by more are told
NOTABLE = 0.01  # of a step: operators that take less may be the profiler's own, or the allocator's
CUT_OFF = 2  # calls, one at either end of the recording


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """An operator in one step: means over the steps. `self_s` and `total_s` are what the table is of."""

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
    """A rank in one step: means over the steps. `exposed_s` is the part of `communication_s` beside which
    nothing else ran there, `own_s` all of the step but that. `computing_s`: in which an operator ran that
    passes nothing; None where that was not noted.
    """

    rank: int
    device: str
    step_s: float
    communication_s: float
    exposed_s: float
    computing_s: float | None = None

    @property
    def own_s(self) -> float:
        """What the others may have to wait for."""
        return self.step_s - self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """A case's profile, by the step. Operators' self times and `idle_s` add up to `step_s`.

    Of several ranks it is the first one's. `communication_s`: of the step, in which something passed between
    devices; `exposed_s`: while nothing else ran. Of several ranks, their means. None: nothing passed.
    """

    case: str
    work: str
    target: str
    framework_version: str | None
    profiler: str
    steps: int
    step_s: float
    plain_s: float | None  # the same steps just before in the same process, without the profiler: median
    measured_s: float | None  # when it was timed
    on_device: bool
    busy: float  # share of the step in which an operator was running
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

    @property
    def slowest(self) -> RankRow | None:
        """The rank that has most to do besides waiting, where there are several."""
        return max(self.ranks, key=lambda rank: rank.own_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """What an operator, or a kind of them, adds to the difference of two steps."""

    name: str
    kind: str
    ref_s: float | None  # None: not there
    new_s: float | None
    change_s: float
    share: float | None  # of the whole difference; None where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDifference:
    """Two profiles: what changed, the largest first, and how much of it operators account for."""

    ref: OperatorTable
    new: OperatorTable
    change_s: float
    idle_change_s: float
    explained: float | None
    changes: tuple[OperatorChange, ...]


def profile_tables(run: Run, found: Iterable[Profiled]) -> list[OperatorTable]:
    """Of those cases of `run` that have a profile. Raises UnreadableInput where none has."""
    latency = {row.case.id: row.value("latency_s") for row in rows_of(run)}
    made = [
        operator_table(each, each.outcome, latency.get(each.case.id))
        for each in found
        if isinstance(each.outcome, Profile)
    ]
    if not made:
        raise UnreadableInput(
            f"Run {run.info.id} has no profile to show.", "accelbench run --profile makes them."
        )
    return made


def operator_table(case: Profiled, profile: Profile, measured_s: float | None) -> OperatorTable:
    """`profile` is the case's; `measured_s`: what a step took when it was timed."""
    rows = tuple(_row(each, profile) for each in profile.operators)
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
            *profile.notes,
            *_disturbed(profile.step_s or (step_s,), plain_s, measured_s),
            *islice(_lost(rows, profile.steps), 1),
        ),
        communication_s=_mean_of([each.communication_s for each in ranks]),
        exposed_s=_mean_of([each.exposed_s for each in ranks]),
        ranks=ranks if profile.ranks else (),
    )


def rank_rows(profile: Profile) -> tuple[RankRow, ...]:
    """Of each rank; of a profile of one process one row, or none where nothing passed."""
    if profile.ranks:
        return tuple(_rank_row(rank, each, profile.steps) for rank, each in enumerate(profile.ranks))
    if profile.communication is None:
        return ()
    own = RankProfile(
        device="", wall_s=profile.wall_s, busy_s=profile.busy_s, communication=profile.communication
    )
    return (_rank_row(0, own, profile.steps),)


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

    def each(total: float | None) -> float | None:
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
        flops=each(operator.flops),
        bytes=each(operator.bytes),
        allocated_bytes=each(operator.allocated_bytes),
        kernels=operator.kernels,
    )


def _disturbed(blocks: Sequence[float], plain_s: float | None, measured_s: float | None) -> Iterator[str]:
    """`blocks`: seconds per step of each under the profiler. Medians are compared: of a few slow blocks
    the machine is the cause.
    """
    traced_s = median(blocks)
    if plain_s and (how := _off(traced_s, plain_s)):
        yield f"the profiler made a step {how}: trust the shares, not the times"
    if how := _off(sum(blocks) / len(blocks), traced_s):
        yield f"the mean step is {how} than the median: something held up a few of them"
    if measured_s and (how := _off(plain_s or traced_s, measured_s)):
        yield f"without the profiler too, a step took {how} than when it was timed: the machine changed"


def _lost(rows: Iterable[OperatorRow], steps: int) -> Iterator[str]:
    """Steps are alike: a part of a call is an event that is not there; at the ends two may be cut off."""
    for row in rows:
        if row.share >= NOTABLE and round(abs(row.calls - round(row.calls)) * steps) > CUT_OFF:
            yield f"{row.name} ran {row.calls:.2f} times a step: the profiler may have lost events"


def _off(step_s: float, expected_s: float) -> str:
    """`26% longer`, if it is much."""
    change = step_s / expected_s - 1
    return f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'}" if abs(change) > DISTURBED else ""


def select_profiles(found: Iterable[Profiled], patterns: Sequence[str]) -> list[Profiled]:
    """Those whose case id holds or matches one of `patterns`, all without any. Raises UsageError for none."""
    everything = list(found)
    wanted = [
        each
        for each in everything
        if not patterns or any(p in each.case.id or fnmatchcase(each.case.id, p) for p in patterns)
    ]
    if everything and not wanted:
        known = ", ".join(each.case.id for each in everything[:5])
        raise UsageError(f"No profiled case matches {' or '.join(patterns)}.", f"There are: {known}")
    return wanted


def pairs(
    ref: Sequence[OperatorTable], new: Sequence[OperatorTable]
) -> list[tuple[OperatorTable, OperatorTable]]:
    """The same case in both; where none is and either has one case, these two. Raises UsageError."""
    after = {each.case: each for each in new}
    found = [(each, after[each.case]) for each in ref if each.case in after]
    if not found and len(ref) == len(new) == 1:
        return [(ref[0], new[0])]
    if not found:
        raise UsageError(
            "No case was profiled in both runs.", "Choose one of each with --case: any two can be compared."
        )
    return found


def difference(ref: OperatorTable, new: OperatorTable) -> ProfileDifference:
    """What each operator adds to the difference of the two steps; with the idle time's, that is all of it."""
    total = new.step_s - ref.step_s
    before, after = ({row.name: row for row in side.rows} for side in (ref, new))
    changes = [_change(name, before[name], after[name], total) for name in before.keys() & after.keys()]
    for each in Kind:
        gone = [row for row in ref.rows if row.kind is each and row.name not in after]
        come = [row for row in new.rows if row.kind is each and row.name not in before]
        changes += _unmatched(each, gone, come, total)
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
    kind: Kind, gone: Sequence[OperatorRow], come: Sequence[OperatorRow], total: float
) -> list[OperatorChange]:
    """Operators of one kind that only one side has: together where both have some, else each alone."""
    if not (gone and come):
        return [_change(row.name, row, None, total) for row in gone] + [
            _change(row.name, None, row, total) for row in come
        ]
    ref_s, new_s = (sum(row.self_s for row in rows) for rows in (gone, come))
    return [
        OperatorChange(
            name=f"{_names(gone)} → {_names(come)}",
            kind=kind,
            ref_s=ref_s,
            new_s=new_s,
            change_s=new_s - ref_s,
            share=_share(new_s - ref_s, total),
        )
    ]


def _names(rows: Sequence[OperatorRow]) -> str:
    most = max(rows, key=lambda row: row.self_s).name
    return most if len(rows) == 1 else f"{most} and {len(rows) - 1} more"


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
