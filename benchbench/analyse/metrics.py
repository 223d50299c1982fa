"""The one table of metrics: what can be compared, followed over time and put under a threshold. Pure.

Columns of rows, digests, comparisons, histories, exporters and the table in docs/metrics.md follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol

from benchbench.errors import UsageError, unknown
from benchbench.format import listed_seconds
from benchbench.machine.conditions import energy_j, step_s
from benchbench.model.measurement import Cost, Measurement, Memory
from benchbench.stats import headline, median

FOREIGN = "not known: the work is a function of the user's"
FARTHEST_APART = 2.0  # the slowest process over the fastest: beyond, no number stands for both
LISTED = 10  # processes that are named one by one


@dataclass(frozen=True, slots=True)
class Value:
    """A number, with its 95 % interval over processes where one is known; without the number, why."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


Process = Callable[[Measurement], Value]


class Pool(Protocol):
    """One value of several processes. `planned`: how many of them, the first, tell the spread; None: all."""

    def __call__(self, values: Sequence[float], planned: int | None = None, /) -> Value: ...


Count = Callable[[Cost], int]


def _always_agree(_values: Sequence[float], /) -> str:
    """Default: such a metric always has a pooled value."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Measured: `process` gives the value of one process, or why it has none; `pool` one value of
    several, or why they have none; `disagreement` is that reason alone, empty where they have one.

    `settled`: it means nothing while a process still warms up. `once`: it has one value a run, whatever the
    number of processes.
    """

    process: Process
    pool: Pool
    disagreement: Callable[[Sequence[float]], str] = _always_agree
    settled: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Derived: the counted work of a step over another metric of it. `uncounted`: why work of 0 has no rate.

    Pooled as work over the pooled divisor, never as a mean of rates: nobody saw that.
    """

    work: Count
    divisor: Metric
    uncounted: str = ""

    @property
    def settled(self) -> bool:
        """Whether the divisor means nothing while a process warms up."""
        return self.divisor.source.settled

    @property
    def once(self) -> bool:
        """Whether the divisor has one value a run."""
        return self.divisor.source.once

    def process(self, measured: Measurement) -> Value:
        """The rate in one process."""
        return self.beside(measured.cost, self.divisor.source.process(measured))

    def beside(self, cost: Cost, divisor: Value) -> Value:
        """The rate of one process where the divisor is known, or not."""
        if not self.work(cost):
            return Value(None, reason=self.uncounted if cost.counted else FOREIGN)
        return finite(self.of(cost, divisor.value), f"{self.divisor.name} is not known")

    def of(self, cost: Cost, divisor: float | None) -> float | None:
        """The rate where the divisor has this value."""
        return self.work(cost) / divisor if divisor else None

    def pool(self, values: Sequence[float], planned: int | None = None, /) -> Value:
        """The rate of several processes: the interval's ends change places."""
        pooled = self.divisor.source.pool([1 / value for value in values], planned)
        if pooled.value is None:
            return Value(None, reason=f"{self.divisor.name} is not known")
        value, low, high = (1 / end if end else None for end in (pooled.value, pooled.high, pooled.low))
        return Value(value, low, high, pooled.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity of a case, in SI base units, and which way is better.

    `exported`: exporters for CI services include it.
    """

    name: str
    label: str
    unit: str
    better: Literal["lower", "higher"]
    meaning: str
    pooled_by: str  # in words
    source: Sampled | Rate
    exported: bool = False

    def of(self, measured: Sequence[Measurement], planned: int | None = None) -> Value:
        """The value of a case's processes, at least one; without any value, the first one's reason.

        `planned`: how many of them, the first, tell their spread; None: all.
        """
        return self.pooled([self.source.process(process) for process in measured], planned)

    def pooled(self, values: Sequence[Value], planned: int | None = None) -> Value:
        """The value of several processes, from that of each."""
        known = [value.value for value in values if value.value is not None]
        return self.source.pool(known, planned) if known else values[0]


def finite(value: float | None, reason: str = "") -> Value:
    """`value`, or `reason` where there is none; NaN and infinity are none, and name themselves."""
    if value is None:
        return Value(None, reason=reason or "not known")
    return Value(value) if isfinite(value) else Value(None, reason=str(value))


def disagreement(seconds: Sequence[float]) -> str:
    """`processes disagree: 3.55, 216, 213 ms` where they are more than `FARTHEST_APART`, else empty.

    Five processes or more whose 95 % interval is wider than ±50 % always are.
    """
    if max(seconds) <= FARTHEST_APART * min(seconds):
        return ""
    shown = seconds if len(seconds) <= LISTED else (min(seconds), max(seconds))
    what = "processes disagree" if shown is seconds else f"{len(seconds)} processes disagree, from and to"
    return f"{what}: {listed_seconds(shown)}"


def geometric_mean(values: Sequence[float], planned: int | None = None, /) -> Value:
    """The geometric mean of seconds, with its t interval (`stats.headline`); no value where they disagree."""
    if reason := disagreement(values):
        return Value(None, reason=reason)
    interval = headline(values, planned=planned)
    unknown = "one process gives no interval" if interval.low is None else ""
    return Value(interval.mid, interval.low, interval.high, unknown)


def middle(values: Sequence[float], _planned: int | None = None, /) -> Value:
    """The median: for what is known of few processes, or measured coarsely."""
    return Value(median(values))


def largest(values: Sequence[float], _planned: int | None = None, /) -> Value:
    """The maximum: what must fit."""
    return Value(max(values))


def _latency(measured: Measurement) -> Value:
    return Value(step_s(measured))


def _cold_start(measured: Measurement) -> Value:
    if measured.cold_s is None:
        return Value(None, reason="the first call was not timed")
    if measured.compile_cache != "empty":
        return Value(None, reason="no round began with an empty compile cache")
    return finite(measured.cold_s)


def _warm_start(measured: Measurement) -> Value:
    if measured.cold_s is None:
        return Value(None, reason="the first call was not timed")
    if measured.compile_cache != "warm":
        return Value(None, reason="no process began with a warm compile cache")
    return finite(measured.cold_s)


def _compilations(measured: Measurement) -> Value:
    return finite(measured.compiled, "not counted here")


def _graph_breaks(measured: Measurement) -> Value:
    return finite(measured.graph_breaks, "not counted here")


def _peak(of: Callable[[Measurement], Memory]) -> Process:
    def own(measured: Measurement) -> Value:
        memory = of(measured)
        return Value(None, reason=memory.reason) if memory.reason else finite(memory.bytes)

    return own


def _energy(measured: Measurement) -> Value:
    joules = energy_j(measured)
    return Value(None, reason=joules) if isinstance(joules, str) else finite(joules)


def _rank_spread(measured: Measurement) -> Value:
    medians = [median(each.block_s) for each in measured.ranks]
    fastest = min(medians, default=0.0)
    return finite(max(medians) / fastest) if fastest else Value(None)


def _entry_skew(measured: Measurement) -> Value:
    """A block begins when the first rank enters it, so the skew of a block is its last rank's entry."""
    last = [max(block) for block in zip(*(each.entry_s for each in measured.ranks), strict=True)]
    return finite(median(last)) if last else Value(None)


def _items(cost: Cost) -> int:
    return cost.items


LATENCY = Metric(
    name="latency_s",
    label="latency",
    unit="s",
    better="lower",
    meaning="time of a step",
    pooled_by="geometric mean of the processes' medians",
    source=Sampled(process=_latency, pool=geometric_mean, disagreement=disagreement, settled=True),
    exported=True,
)
ENERGY = Metric(
    name="energy_j",
    label="energy",
    unit="J",
    better="lower",
    meaning="energy that the device draws for a step",
    pooled_by="median",
    source=Sampled(process=_energy, pool=middle),
    exported=True,
)
METRICS = (
    LATENCY,
    Metric(
        name="cold_s",
        label="cold start",
        unit="s",
        better="lower",
        meaning="time of the first call, its compile cache empty",
        pooled_by="median",
        source=Sampled(process=_cold_start, pool=middle, once=True),
        exported=True,
    ),
    Metric(
        name="warm_s",
        label="warm start",
        unit="s",
        better="lower",
        meaning="time of the first call of a process that finds what an earlier one compiled",
        pooled_by="median",
        source=Sampled(process=_warm_start, pool=middle),
        exported=True,
    ),
    Metric(
        name="compilations",
        label="compilations",
        unit="",
        better="lower",
        meaning="programs that the first call traces and compiles",
        pooled_by="median",
        source=Sampled(process=_compilations, pool=middle),
    ),
    Metric(
        name="graph_breaks",
        label="graph breaks",
        unit="",
        better="lower",
        meaning="places where torch.compile went back to Python, in the first call",
        pooled_by="median",
        source=Sampled(process=_graph_breaks, pool=middle),
    ),
    Metric(
        name="items_per_s",
        label="throughput",
        unit="item/s",
        better="higher",
        meaning="items (images, products, calls, …) a second",
        pooled_by="items / latency",
        source=Rate(work=_items, divisor=LATENCY),
        exported=True,
    ),
    Metric(
        name="flops_per_s",
        label="FLOP/s",
        unit="FLOP/s",
        better="higher",
        meaning="counted floating-point operations a second",
        pooled_by="FLOPs / latency",
        source=Rate(work=lambda cost: cost.flops, divisor=LATENCY, uncounted="the work counts no FLOPs"),
    ),
    Metric(
        name="bytes_per_s",
        label="bytes/s",
        unit="B/s",
        better="higher",
        meaning="counted bytes a second",
        pooled_by="bytes / latency",
        source=Rate(work=lambda cost: cost.bytes, divisor=LATENCY, uncounted="the work counts no bytes"),
    ),
    Metric(
        name="link_bytes_per_s",
        label="link bandwidth",
        unit="B/s",
        better="higher",
        meaning="bytes a second that a link between host and device, or between devices, carries",
        pooled_by="link bytes / latency",
        source=Rate(work=lambda cost: cost.link_bytes, divisor=LATENCY),
    ),
    Metric(
        name="rank_spread",
        label="slowest rank",
        unit="",
        better="lower",
        meaning="of several ranks, the slowest one's median block over the fastest one's",
        pooled_by="median",
        source=Sampled(process=_rank_spread, pool=middle),
    ),
    Metric(
        name="entry_skew_s",
        label="entry skew",
        unit="s",
        better="lower",
        meaning="of several ranks, from the first one's entry into a block to the last one's",
        pooled_by="median",
        source=Sampled(process=_entry_skew, pool=middle),
    ),
    Metric(
        name="peak_device_bytes",
        label="peak device memory",
        unit="B",
        better="lower",
        meaning="most memory held on the device",
        pooled_by="maximum",
        source=Sampled(process=_peak(lambda measured: measured.peak_device), pool=largest),
        exported=True,
    ),
    Metric(
        name="peak_host_bytes",
        label="peak host memory",
        unit="B",
        better="lower",
        meaning="most memory that the process holds while a step runs",
        pooled_by="maximum",
        source=Sampled(process=_peak(lambda measured: measured.peak_host), pool=largest),
        exported=True,
    ),
    ENERGY,
    Metric(
        name="items_per_j",
        label="items per joule",
        unit="item/J",
        better="higher",
        meaning="items for a joule of the device",
        pooled_by="items / energy",
        source=Rate(work=_items, divisor=ENERGY),
    ),
)


def metric_named(name: str) -> Metric:
    """The metric of that name. Raises UsageError."""
    known = {metric.name: metric for metric in METRICS}
    if name not in known:
        raise UsageError(f"No metric named {name!r}.", unknown("metrics", name, list(known)))
    return known[name]


def values_of(measured: Sequence[Measurement], planned: int | None = None) -> dict[str, Value]:
    """What `of` says for every metric. What rates are divided by stands before them, and is taken once."""
    processes: dict[str, list[Value]] = {}
    for metric in METRICS:
        if isinstance(source := metric.source, Rate):
            divisors = processes[source.divisor.name]
            own = [source.beside(each.cost, value) for each, value in zip(measured, divisors, strict=True)]
        else:
            own = [source.process(each) for each in measured]
        processes[metric.name] = own
    return {metric.name: metric.pooled(processes[metric.name], planned) for metric in METRICS}


def sampled_sources(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """The sampled metrics that these follow from: a rate follows from its divisor."""
    sources = (metric.source.divisor if isinstance(metric.source, Rate) else metric for metric in metrics)
    return tuple(dict.fromkeys(sources))
