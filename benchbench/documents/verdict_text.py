"""A verdict in words: the change, the values it stands on, and how sure it is. Pure."""

from __future__ import annotations

from collections.abc import Callable

from benchbench import format as fmt
from benchbench.analyse.digest import SETTLED
from benchbench.analyse.metrics import METRICS
from benchbench.comparing.verdicts import CaseComparison
from benchbench.documents.run import CaseVerdict

UNITS = {metric.name: metric.unit for metric in METRICS}


def sentence(verdict: CaseComparison) -> str:
    """`1.080× [1.068, 1.093]  1.00 ms → 1.08 ms  p <0.001  MDE 1.76 %  5 v 5 processes`, of what is known."""
    ratio, values, p, mde, processes = facts(verdict)
    named = (ratio, values, p and f"p {p}", mde and f"MDE {mde}", processes and f"{processes} processes")
    return "  ".join(filter(None, named))


def judged(verdict: CaseComparison) -> CaseVerdict:
    """For the exporters: `latency_s slower: 1.080× …; why`."""
    parts = filter(None, (sentence(verdict), notes(verdict)))
    text = f"{verdict.metric} {verdict.verdict}: {'; '.join(parts)}"
    return CaseVerdict(case=verdict.case, verdict=verdict.verdict, ratio=verdict.ratio, text=text)


def facts(verdict: CaseComparison) -> tuple[str, str, str, str, str]:
    """Ratio, values, p, MDE and processes, each empty where it is not known."""
    known = verdict.ref is not None or verdict.new is not None

    def show(value: float) -> str:
        return fmt.quantity(value, UNITS[verdict.metric])

    return (
        _interval(verdict),
        f"{_maybe(show, verdict.ref)} → {_maybe(show, verdict.new)}" if known else "",
        _maybe(fmt.probability, verdict.p_holm, ""),
        _maybe(fmt.share, verdict.mde, ""),
        f"{verdict.ref_processes} v {verdict.new_processes}" if known else "",
    )


def notes(verdict: CaseComparison) -> str:
    """Why there is no other verdict, what is suspect, and which operators take longer."""
    stops = [stop for stop in verdict.stopped_by if stop != "precision"]
    matters = stops and verdict.ratio is not None and verdict.metric in SETTLED
    stopped = f"less precise than asked (stopped by {' and '.join(stops)})" if matters else ""
    longer = f"operators: {', '.join(verdict.operators)}" if verdict.operators else ""
    return fmt.visible("; ".join(filter(None, (verdict.reason, stopped, longer))))


def _interval(verdict: CaseComparison) -> str:
    bounds = [_maybe(fmt.significant, bound, "") for bound in (verdict.low, verdict.high)]
    times = _maybe(lambda ratio: f"{fmt.significant(ratio)}×", verdict.ratio, "")
    return f"{times} [{', '.join(bounds)}]" if all(bounds) else times


def _maybe(show: Callable[[float], str], value: float | None, absent: str = "–") -> str:
    return absent if value is None else show(value)
