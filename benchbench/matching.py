"""Two runs to pairs: the same case in both, and what keeps a pair from being compared. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchbench.conditions import energy_j
from benchbench.environment import fingerprint
from benchbench.metrics import NO_SPEED, Metric, steps_s
from benchbench.model import Failure, Machine, Measurement, Record, Run, RunInfo, Status
from benchbench.plausible import implausible
from benchbench.stats import Difference, mean, median, welch

LEAST_PROCESSES = 3
SETTLED = ("latency_s", "items_per_s", "flops_per_s", "bytes_per_s")  # mean nothing while warming up
ELSEWHERE = "not part of the run"


class Judgement(StrEnum):
    """What can be said of a case. Of a metric that is no time, slower means worse and faster better."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"  # too much noise for the threshold
    INSUFFICIENT = "insufficient"  # too few values, or not steady: not tested
    INCOMPARABLE = "incomparable"  # measured under other conditions
    NEW = "new"
    GONE = "gone"
    BROKEN = "broken"  # was ok and fails now


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One case in one run; `measured` is empty where the case failed or is absent, and the text says how."""

    measured: tuple[Measurement, ...] = ()
    failure: str = ""
    absent: str = ""
    target: str = ""
    version: str | None = None
    device_model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case in both runs; `judgement` is None where a test is to decide.

    `ref_logs` and `new_logs` have the metric's logarithm for each process that has a value.
    """

    case: str
    ref: Side
    new: Side
    ref_logs: list[float]
    new_logs: list[float]
    judgement: Judgement | None
    reason: str

    @property
    def alike(self) -> bool:
        """Whether the two sides did the same under the same conditions."""
        return self.judgement in (None, Judgement.INSUFFICIENT)

    @property
    def log_ratio(self) -> float | None:
        """log(new / ref), of geometric means."""
        if not (self.alike and self.ref_logs and self.new_logs):
            return None
        return mean(self.new_logs) - mean(self.ref_logs)

    @property
    def difference(self) -> Difference | None:
        """The same with its error, for which each side needs two values."""
        if not self.alike or min(len(self.ref_logs), len(self.new_logs)) < 2:
            return None
        return welch(self.ref_logs, self.new_logs)


def match(ref: Run, new: Run, metric: Metric) -> list[Pair]:
    """A pair for every case that either run planned, by id: those of `ref` first, each in plan order."""
    before, after = _sides(ref), _sides(new)
    bars = _run_bars(ref.info, new.info)
    none = Side(absent=ELSEWHERE)
    sides = {case: (before.get(case, none), after.get(case, none)) for case in before | after}
    return [_pair(case, a, b, metric, bars) for case, (a, b) in sides.items() if not (a.absent and b.absent)]


def changes(ref: RunInfo, new: RunInfo) -> list[str]:
    """What differs between the runs and does not bar comparing them: finding what it costs is the point."""
    before, after = ({probe.target.name: probe.version for probe in info.probes} for info in (ref, new))
    return [
        *_unequal(before, after),
        *_differences(ref.machine, new.machine, ("os", "python")),
        *_differences(ref.policy, new.policy, ("name", "rounds"), "policy "),
        *_differences(ref, new, ("version",), "accelbench "),
    ]


def arrow(name: str, ref: object, new: object) -> str:
    """`torch 2.12.1 → 2.13.0`."""

    def text(value: object) -> str:
        return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)

    return f"{name} {text(ref)} → {text(new)}"


def _sides(run: Run) -> dict[str, Side]:
    """By case id: a case that two suites of a run share was measured in twice as many processes."""
    records: dict[str, list[Record]] = {case.id: [] for case in run.info.plan}
    for record in run.records:
        records.setdefault(record.case.id, []).append(record)
    sides = {case: _side(found) for case, found in records.items()}
    return {each.case.id: Side(absent=f"{each.status}: {each.reason}") for each in run.info.left_out} | sides


def _side(records: Sequence[Record]) -> Side:
    """A round cut short counts as missing, not as failed."""
    done = [record for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [record.outcome for record in done if isinstance(record.outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in NO_SPEED)
        return Side(failure=f"{first.status}: {first.message}")
    if not done:
        return Side()
    measured = tuple(record.outcome for record in done if isinstance(record.outcome, Measurement))
    if why := implausible(done[0].case, done[0].device_model, measured):
        return Side(failure=f"{Status.IMPLAUSIBLE}: {why}")
    return Side(
        measured=measured,
        target=done[0].case.target,
        version=done[0].framework_version,
        device_model=done[0].device_model,
    )


def _pair(case: str, ref: Side, new: Side, metric: Metric, run_bars: Sequence[str]) -> Pair:
    ref_logs, new_logs = _logs(metric, ref.measured), _logs(metric, new.measured)
    bars = [*run_bars, *_case_bars(ref, new)]
    judgement, reason = (
        _presence(ref, new)
        or ((Judgement.INCOMPARABLE, "; ".join(bars)) if bars else None)
        or _shortage(len(ref_logs), len(new_logs), metric)
        or _unsteadiness(ref, new, metric)
        or (None, "")
    )
    return Pair(
        case=case,
        ref=ref,
        new=new,
        ref_logs=ref_logs,
        new_logs=new_logs,
        judgement=judgement,
        reason=reason,
    )


def _presence(ref: Side, new: Side) -> tuple[Judgement, str] | None:
    if new.absent:
        return Judgement.GONE, new.absent
    if ref.absent:
        return Judgement.NEW, new.failure or ref.absent
    if ref.failure and new.failure:
        return Judgement.INSUFFICIENT, f"fails in both runs: {new.failure}"
    if new.failure:
        return Judgement.BROKEN, new.failure
    return (Judgement.NEW, f"failed before: {ref.failure}") if ref.failure else None


def _run_bars(ref: RunInfo, new: RunInfo) -> list[str]:
    settings = _differences(ref.settings, new.settings, ("threads", "allocator", "isolation"))
    if fingerprint(ref.machine) == fingerprint(new.machine):
        return settings
    return (_unequal(_hardware(ref.machine), _hardware(new.machine)) or ["other hardware"]) + settings


def _hardware(machine: Machine) -> dict[str, object]:
    return {
        "CPU": machine.cpu,
        "cores": machine.cores,
        "usable threads": machine.threads,
        "GiB of memory": round(machine.memory_bytes / 2**30),
        "architecture": machine.architecture,
        "accelerators": machine.accelerators,
    }


def _case_bars(ref: Side, new: Side) -> list[str]:
    """The device, the work as counted, the clock, and the precision as read back."""
    if not (ref.measured and new.measured):
        return []
    a, b = ref.measured[0], new.measured[0]
    return [
        *_differences(ref, new, ("device_model",)),
        *_differences(a.cost, b.cost, ("flops", "bytes", "items", "item"), "counted "),
        *_differences(a, b, ("timer",)),
        *_unequal(a.precision, b.precision),
    ]


def _differences(ref: object, new: object, names: Iterable[str], prefix: str = "") -> list[str]:
    before, after = ({prefix + name: getattr(each, name) for name in names} for each in (ref, new))
    return [text.replace("_", " ") for text in _unequal(before, after)]


def _unequal(ref: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Of the keys in both: a newer version may report more."""
    return [arrow(name, ref[name], new[name]) for name in ref if name in new and ref[name] != new[name]]


def _shortage(ref: int, new: int, metric: Metric) -> tuple[Judgement, str] | None:
    if min(ref, new) >= LEAST_PROCESSES:
        return None
    counts = f"{ref} v {new} processes have {metric.name}"
    return Judgement.INSUFFICIENT, f"{counts}, each side needs {LEAST_PROCESSES}"


def _unsteadiness(ref: Side, new: Side, metric: Metric) -> tuple[Judgement, str] | None:
    before, after = (sum(not each.steady for each in side.measured) for side in (ref, new))
    if metric.name not in SETTLED or not before + after:
        return None
    return Judgement.INSUFFICIENT, f"still warming up when measured, in {before} v {after} processes"


def _logs(metric: Metric, measured: Iterable[Measurement]) -> list[float]:
    values = [_value(metric.name, each) for each in measured]
    return [math.log(value) for value in values if value is not None and 0 < value < math.inf]


def _value(metric: str, measured: Measurement) -> float | None:
    latency, cost = median(steps_s(measured)), measured.cost
    work = {"items_per_s": cost.items, "flops_per_s": cost.flops, "bytes_per_s": cost.bytes}
    if metric in work:
        return work[metric] / latency if latency else None
    joules = energy_j(measured)
    energy = None if isinstance(joules, str) else joules
    found: dict[str, float | None] = {
        "latency_s": latency,
        "energy_j": energy,
        "items_per_j": cost.items / energy if energy else None,
        "cold_s": measured.cold_s if measured.compile_cache == "empty" else None,
        "peak_device_bytes": measured.peak_device.bytes,
        "peak_host_bytes": measured.peak_host.bytes,
    }
    return found.get(metric)
