"""Table of metrics: everything that can be compared, followed over time and given a threshold. Pure.

Rows, digests, comparisons, histories, exporters and the table in docs/metrics.md are derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol

from benchbench.errors import UsageError, unknown
from benchbench.format import listed_seconds
from benchbench.machine.conditions import energy_j, step_s
from benchbench.model.measurement import Cost, Measurement, Memory
from benchbench.stats import headline, median

USER_FUNCTION = "not known: the work is a function of the user's"
MAX_PROCESS_RATIO = 2.0  # slowest over fastest process; beyond, no value represents both
MAX_LISTED = 10  # processes that are listed individually


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its 95 % interval over processes, if known; or the reason for its absence."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


Process = Callable[[Measurement], Value]


class Pool(Protocol):
    """Function that pools the values of several processes into one.

    `planned`: number of first values that determine the spread; None: all.
    """

    def __call__(self, values: Sequence[float], planned: int | None = None, /) -> Value: ...


Count = Callable[[Cost], int]


def pooled_median(values: Sequence[float], _planned: int | None = None, /) -> Value:
    """Median: for metrics of few processes, or of coarse resolution."""
    return Value(median(values))


def _always_agree(_values: Sequence[float], /) -> str:
    """Disagreement of metrics that always have a pooled value: none."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Measured source of a metric. `process`: value of one process, or the reason for its absence.

    `pool`: common value of several processes, or the reason for its absence; `disagreement`: this reason
    alone, empty if there is a value. `needs_steady`: meaningless while a process warms up. `once_per_run`:
    one value per run, whatever the number of processes.
    """

    process: Process
    pool: Pool = pooled_median
    disagreement: Callable[[Sequence[float]], str] = _always_agree
    needs_steady: bool = False
    once_per_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Derived source of a metric: the counted work of a step divided by another metric of it.

    `uncounted`: reason for the absence of a rate if the work is 0. The pooled rate is the work over the
    pooled divisor, since a mean of rates was never observed.
    """

    work: Count
    divisor: Metric
    uncounted: str = ""

    @property
    def needs_steady(self) -> bool:
        """True if the divisor is meaningless while a process warms up."""
        return self.divisor.source.needs_steady

    @property
    def once_per_run(self) -> bool:
        """True if the divisor has one value per run."""
        return self.divisor.source.once_per_run

    def process(self, measurement: Measurement) -> Value:
        """Rate of one process."""
        return self.from_divisor(measurement.cost, self.divisor.source.process(measurement))

    def from_divisor(self, cost: Cost, divisor: Value) -> Value:
        """Rate of one process from its divisor, or the reason for its absence."""
        if not self.work(cost):
            return Value(None, reason=self.uncounted if cost.counted else USER_FUNCTION)
        return finite(self.compute(cost, divisor.value), f"{self.divisor.name} is not known")

    def compute(self, cost: Cost, divisor: float | None) -> float | None:
        """Rate for this value of the divisor; None if that is absent or 0."""
        return self.work(cost) / divisor if divisor else None

    def pool(self, values: Sequence[float], planned: int | None = None, /) -> Value:
        """Rate of several processes; the ends of the divisor's interval are swapped."""
        pooled = self.divisor.source.pool([1 / value for value in values], planned)
        if pooled.value is None:
            return Value(None, reason=f"{self.divisor.name} is not known")
        value, low, high = (1 / end if end else None for end in (pooled.value, pooled.high, pooled.low))
        return Value(value, low, high, pooled.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity of a case in SI base units, and whether lower or higher is better.

    `exported`: exporters for CI services include it.
    """

    name: str
    label: str
    unit: str
    meaning: str
    source: Sampled | Rate
    pooled_by: str = "median"  # in words
    better: Literal["lower", "higher"] = "lower"
    exported: bool = False

    def pool(self, values: Sequence[Value], planned: int | None = None) -> Value:
        """Pooled value from the value of each of at least one process; else the reason of the first.

        `planned`: number of first processes that determine the spread; None: all.
        """
        present = [value.value for value in values if value.value is not None]
        return self.source.pool(present, planned) if present else values[0]


def finite(value: float | None, reason: str = "") -> Value:
    """`value` as a Value; for None, NaN or infinity only the reason."""
    if value is None:
        return Value(None, reason=reason or "not known")
    return Value(value) if isfinite(value) else Value(None, reason=str(value))


def disagreement(seconds: Sequence[float]) -> str:
    """`processes disagree: 3.55, 216, 213 ms` if their ratio exceeds `MAX_PROCESS_RATIO`, else empty.

    Any five processes whose 95 % interval is wider than ±50 % exceed it.
    """
    if max(seconds) <= MAX_PROCESS_RATIO * min(seconds):
        return ""
    listed = seconds if len(seconds) <= MAX_LISTED else (min(seconds), max(seconds))
    prefix = "processes disagree" if listed is seconds else f"{len(seconds)} processes disagree, from and to"
    return f"{prefix}: {listed_seconds(listed)}"


def geometric_mean(values: Sequence[float], planned: int | None = None, /) -> Value:
    """Geometric mean of seconds with its t interval (`stats.headline`); no value if processes disagree."""
    if reason := disagreement(values):
        return Value(None, reason=reason)
    interval = headline(values, planned=planned)
    reason = "one process gives no interval" if interval.low is None else ""
    return Value(interval.mid, interval.low, interval.high, reason)


def pooled_maximum(values: Sequence[float], _planned: int | None = None, /) -> Value:
    """Maximum: the memory that must be available."""
    return Value(max(values))


def _latency(measurement: Measurement) -> Value:
    return Value(step_s(measurement))


def _first_call(compile_cache: str, other_cache: str) -> Process:
    """Time of a first call with this state of the compile cache; else the reason `other_cache`."""

    def process_first_call(measurement: Measurement) -> Value:
        if measurement.cold_s is None:
            return Value(None, reason="the first call was not timed")
        if measurement.compile_cache != compile_cache:
            return Value(None, reason=other_cache)
        return finite(measurement.cold_s)

    return process_first_call


_cold_start = _first_call("empty", "no round began with an empty compile cache")
_warm_start = _first_call("warm", "no process began with a warm compile cache")


def _compilations(measurement: Measurement) -> Value:
    return finite(measurement.compiled, "not counted here")


def _graph_breaks(measurement: Measurement) -> Value:
    return finite(measurement.graph_breaks, "not counted here")


def _peak(of: Callable[[Measurement], Memory]) -> Process:
    def process_peak(measured: Measurement) -> Value:
        memory = of(measured)
        return Value(None, reason=memory.reason) if memory.reason else finite(memory.bytes)

    return process_peak


def _energy(measurement: Measurement) -> Value:
    joules = energy_j(measurement)
    return Value(None, reason=joules) if isinstance(joules, str) else finite(joules)


def _rank_spread(measurement: Measurement) -> Value:
    medians = [median(rank.block_s) for rank in measurement.ranks]
    fastest = min(medians, default=0.0)
    return finite(max(medians) / fastest) if fastest else Value(None)


def _entry_skew(measurement: Measurement) -> Value:
    """Median time from the first rank's entry into a block, when the block begins, to the last rank's."""
    last_entries = [max(block) for block in zip(*(rank.entry_s for rank in measurement.ranks), strict=True)]
    return finite(median(last_entries)) if last_entries else Value(None)


def _items(cost: Cost) -> int:
    return cost.items


LATENCY = Metric(
    name="latency_s",
    label="latency",
    unit="s",
    meaning="time of a step",
    pooled_by="geometric mean of the processes' medians",
    source=Sampled(process=_latency, pool=geometric_mean, disagreement=disagreement, needs_steady=True),
    exported=True,
)
ENERGY = Metric(
    name="energy_j",
    label="energy",
    unit="J",
    meaning="energy that the device draws for a step",
    source=Sampled(process=_energy),
    exported=True,
)
METRICS = (
    LATENCY,
    Metric(
        name="cold_s",
        label="cold start",
        unit="s",
        meaning="time of the first call, its compile cache empty",
        source=Sampled(process=_cold_start, once_per_run=True),
        exported=True,
    ),
    Metric(
        name="warm_s",
        label="warm start",
        unit="s",
        meaning="time of the first call of a process that finds what an earlier one compiled",
        source=Sampled(process=_warm_start),
        exported=True,
    ),
    Metric(
        name="compilations",
        label="compilations",
        unit="",
        meaning="programs that the first call traces and compiles",
        source=Sampled(process=_compilations),
    ),
    Metric(
        name="graph_breaks",
        label="graph breaks",
        unit="",
        meaning="places where torch.compile went back to Python, in the first call",
        source=Sampled(process=_graph_breaks),
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
        meaning="of several ranks, the slowest one's median block over the fastest one's",
        source=Sampled(process=_rank_spread),
    ),
    Metric(
        name="entry_skew_s",
        label="entry skew",
        unit="s",
        meaning="of several ranks, from the first one's entry into a block to the last one's",
        source=Sampled(process=_entry_skew),
    ),
    Metric(
        name="peak_device_bytes",
        label="peak device memory",
        unit="B",
        meaning="most memory held on the device",
        pooled_by="maximum",
        source=Sampled(process=_peak(lambda measured: measured.peak_device), pool=pooled_maximum),
        exported=True,
    ),
    Metric(
        name="peak_host_bytes",
        label="peak host memory",
        unit="B",
        meaning="most memory that the process holds while a step runs",
        pooled_by="maximum",
        source=Sampled(process=_peak(lambda measured: measured.peak_host), pool=pooled_maximum),
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
    """Metric of this name. Raises UsageError."""
    metrics_by_name = {metric.name: metric for metric in METRICS}
    if name not in metrics_by_name:
        raise UsageError(f"No metric named {name!r}.", unknown("metrics", name, list(metrics_by_name)))
    return metrics_by_name[name]


def metric_values(measurements: Sequence[Measurement], planned: int | None = None) -> dict[str, Value]:
    """Value of each metric over the processes of a case. Divisors of rates are computed once."""
    processes: dict[str, list[Value]] = {}
    for metric in METRICS:
        if isinstance(source := metric.source, Rate):
            divisors = processes[source.divisor.name]
            values = [
                source.from_divisor(process.cost, value)
                for process, value in zip(measurements, divisors, strict=True)
            ]
        else:
            values = [source.process(process) for process in measurements]
        processes[metric.name] = values
    return {metric.name: metric.pool(processes[metric.name], planned) for metric in METRICS}
