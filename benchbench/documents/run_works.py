"""What a run compares: its rows by the work they do, on one device or several, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.rows import CaseKey, Row, by_case, case_key, params_text
from benchbench.documents.run_columns import Beside, latency_s
from benchbench.documents.short_names import Telling, telling, telling_params
from benchbench.errors import UsageError, unknown
from benchbench.judging.ranking import (
    Contender,
    Standing,
    WorkVerdict,
    contender,
    judge_works,
    rivals_of,
    work_key,
)
from benchbench.model.case import Cache, Case, Scalar
from benchbench.model.placement import suffix
from benchbench.model.run import Run

CACHES = {Cache.COLD: "cold caches", Cache.ROTATE: "rotating inputs"}
NO_VERDICT = WorkVerdict(fastest=None, rivals=(), kind="")
AXES = ("dtype", "mode", "target", "device", "cache", "phase")  # and every parameter


@dataclass(frozen=True, slots=True)
class Work:
    """One computation and who does it, in the order of the plan. `short_title` tells it from the others."""

    title: str
    short_title: str
    rows: tuple[Row, ...]
    names: tuple[str, ...]  # of the rows: `torch eager`
    short_names: tuple[str, ...]
    verdict: WorkVerdict = NO_VERDICT

    def beside(self, row: Row) -> Beside | None:
        """What `row` is compared with: the fastest. A single one is compared with nothing."""
        fastest = self.verdict.fastest
        if fastest is None or sum(latency_s(each) is not None for each in self.rows) < 2:
            return None
        base = next((each for each in self.rows if each.case == fastest.case), None)
        rival = next((each for each in self.verdict.rivals if each.contender.case == row.case), None)
        told = rival.slower if rival else self.verdict.standing in (Standing.WON, Standing.ALONE)
        return Beside(base, rival.ratio if rival else 1.0, told) if base else None


def judged(found: Sequence[Work], run: Run) -> list[Work]:
    """The same with a verdict each, over all of them."""
    contend = _contenders(run)
    contenders = [[made for row in work.rows if (made := contend(row))] for work in found]
    verdicts = judge_works(contenders, run.info.policy)
    return [replace(work, verdict=verdict) for work, verdict in zip(found, verdicts, strict=True)]


def besides(groups: Sequence[tuple[Row, Sequence[Row]]], run: Run) -> list[dict[CaseKey, Beside]]:
    """Of each group's base its rows beside it, by `case_key`; none where the base cannot be compared."""
    contend = _contenders(run)
    known = [
        (base, made, [other for row in rows if row is not base and (other := contend(row))])
        for base, rows in groups
        if (made := contend(base))
    ]
    judged_ = iter(rivals_of([(made, others) for _, made, others in known], run.info.policy))
    found = {id(base): next(judged_) for base, _, _ in known}
    return [
        {
            case_key(each.contender.case): Beside(base, each.ratio, each.slower or each.faster)
            for each in found.get(id(base), [])
        }
        | {case_key(base.case): Beside(base, 1.0, told=True)}
        for base, _ in groups
    ]


def _contenders(run: Run) -> Callable[[Row], Contender | None]:
    """Of a row of the run what it contends with; None without a speed that says something."""
    recorded = by_case(run.records)
    return lambda row: contender(row.case, recorded.get(case_key(row.case), ())) if row.ok else None


def works(rows: Sequence[Row], by: str = "") -> list[Work]:
    """In the order of the plan. `by`: an axis that tells no work from another."""
    grouped: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(work_key(row.case, by), []).append(row)
    cases = [group[0].case for group in grouped.values()]
    known = telling((case.workload, _params(case, by)) for case in cases)
    one_mode = _one_mode(rows)
    return [_work(group, by, known, one_mode) for group in grouped.values()]


def axis(name: str, rows: Iterable[Row]) -> str:
    """The name of what a case has a value of. Raises UsageError."""
    known = [*AXES, *dict.fromkeys(key for row in rows for key in row.case.params)]
    if name not in ("backend", *known):
        raise UsageError(f"Cases have no {name!r}.", unknown("axes", name, known))
    return "target" if name == "backend" else name


def value_of(case: Case, by: str) -> str:
    """On an axis; empty where the case has none. A target is told with its mode: each has its own."""
    if by == "target":
        return f"{case.target} {case.mode}".strip()
    value = getattr(case, by) if by in AXES else case.params.get(by)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def value_text(by: str, value: str) -> str:
    """`batch=8` of a parameter; the values of the other axes speak for themselves."""
    return value if by in AXES else f"{by}={value}"


def _params(case: Case, by: str) -> dict[str, Scalar]:
    return {name: value for name, value in case.params.items() if name != by}


def _one_mode(rows: Iterable[Row]) -> bool:
    """Whether a target's name says which mode."""
    return len({(row.case.target, row.case.mode) for row in rows}) == len({row.case.target for row in rows})


def _work(group: Sequence[Row], by: str, known: Telling, one_mode: bool) -> Work:
    case = group[0].case
    params = _params(case, by)
    short = telling_params(case.workload, params, known)
    more = " …" if len(short) < len(params) else ""
    devices = {row.case.device for row in group}
    same_device = len(devices) == 1 and by != "device"
    context = _context(case, by, case.device if same_device else "")
    return Work(
        title=" · ".join((_head(case.workload, params), *context)),
        short_title=" · ".join((_head(case.workload, short) + more, *context)),
        rows=tuple(group),
        names=tuple(_name(row.case, by, same_device, False) for row in group),
        short_names=tuple(_name(row.case, by, same_device, one_mode) for row in group),
    )


def _head(workload: str, params: Mapping[str, Scalar]) -> str:
    return f"{workload}  {params_text(params)}".rstrip()


def _context(case: Case, by: str, device: str) -> list[str]:
    dtype = str(case.dtype) if case.dtype and by != "dtype" else ""
    caches = CACHES.get(case.cache, "") if case.dtype and by != "cache" else ""
    return [text for text in (dtype, caches, device) if text]


def _name(case: Case, by: str, same_device: bool, one_mode: bool) -> str:
    """Who computes it, of those that differ in nothing else."""
    target, mode = (
        ("", "") if by == "target" else (case.target, "" if by == "mode" or one_mode else case.mode)
    )
    device = "" if same_device or by == "device" else case.device
    where = suffix(case.placement, case.environment)
    return " ".join(filter(None, (target, mode, device, where)))
