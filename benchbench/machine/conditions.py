"""Conditions of a measurement, judged from its telemetry: other programs, throttling, energy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.machine.gpus import POWER_CAP, THROTTLED
from benchbench.model.measurement import Measurement, Telemetry, Window
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.run import Record
from benchbench.stats import mean, median

MIN_SPAN_S = 0.5  # to measure CPU use: fifty ticks of /proc/stat
MIN_ENERGY_S = 2.0  # NVML's counter moves every 20 to 100 ms, at most 5 % of this
SLOW_CLOCK = 0.75  # of the run's median; nvbench calls lower clocks throttled
MAX_THROTTLED = 0.1  # share of samples without a note
MAX_STOPPED = 0.01  # share of time stopped by a quota without effect
MEAN_APART = 0.05  # of the median; more than the scatter of steady blocks (docs/measuring.md)
MAX_WAITING = 0.01  # share of time waiting for memory without effect


def tolerated_cores(threads: int) -> float:
    """Cores that other programs may use of a case's CPUs before the case counts as contended.

    Threads that share a step wait for the slowest. If other programs take a tenth of one core, the step is a
    tenth longer. Housekeeping grows with the CPUs, so on many CPUs the limit is 2 % of them.
    """
    return max(0.1, 0.02 * threads)


def median_clocks_mhz(records: Iterable[Record]) -> dict[str, float]:
    """Median SM clock of a run by device."""
    clocks_by_device: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record.outcome, Measurement) and record.outcome.telemetry:
            clocks_by_device.setdefault(record.case.device, []).extend(record.outcome.telemetry.sm_mhz)
    return {device: median(clocks) for device, clocks in clocks_by_device.items() if clocks}


def condition_notes(measurements: Sequence[Measurement], median_clock_mhz: float | None = None) -> list[Note]:
    """Notes on the conditions of a case's processes. `median_clock_mhz`: the device's median SM clock."""
    processes = _sampled(measurements)
    notes = [*_throttled(processes, median_clock_mhz), *contended(measurements)]
    if (share := memory_waiting(measurements) or 0.0) > MAX_WAITING:
        notes.append(note(NoteKind.SHORT_OF_MEMORY, share=share))
    return notes + list(dict.fromkeys(note for process in processes for note in process.telemetry.notes))


@dataclass(frozen=True, slots=True)
class _SampledProcess:
    """A process with telemetry."""

    window: Window
    telemetry: Telemetry
    length_s: float  # time in which blocks were timed

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last sample."""
        at_s = self.telemetry.at_s
        return at_s[-1] - at_s[0] if at_s else 0.0

    @property
    def others_s(self) -> float:
        """CPU seconds used neither by the case nor by this program between the samples."""
        case_s = self.window.cpu_s * self.span_s / self.length_s if self.length_s > 0 else 0.0
        return self.telemetry.busy_s[-1] - self.telemetry.own_s[-1] - case_s


def _sampled(measurements: Iterable[Measurement]) -> list[_SampledProcess]:
    return [
        _SampledProcess(measurement.window, measurement.telemetry, measurement.timed_s)
        for measurement in measurements
        if measurement.window and measurement.telemetry
    ]


def throttled_samples(telemetry: Telemetry, median_clock_mhz: float | None = None) -> list[frozenset[str]]:
    """Causes of throttling at each sample; empty sets for samples without any."""
    samples: list[set[str]] = [set() for _ in telemetry.at_s]
    for causes, reasons in zip(samples, telemetry.reasons, strict=False):
        causes.update(name for bit, name in THROTTLED.items() if reasons & bit)
    for causes, clock in zip(samples, telemetry.sm_mhz, strict=False):
        if median_clock_mhz and clock < SLOW_CLOCK * median_clock_mhz:
            causes.add("low SM clock")
    return [frozenset(causes) for causes in samples]


def _throttled(processes: Sequence[_SampledProcess], median_clock_mhz: float | None) -> list[Note]:
    samples = [
        causes for process in processes for causes in throttled_samples(process.telemetry, median_clock_mhz)
    ]
    count = sum(bool(causes) for causes in samples)
    if count <= MAX_THROTTLED * len(samples):
        return []
    counts = Counter(name for causes in samples for name in causes)
    if set(counts) == {POWER_CAP}:
        return [note(NoteKind.POWER_CAP, share=count / len(samples), samples=len(samples))]
    names = ", ".join(name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return [note(NoteKind.THROTTLED, share=count / len(samples), samples=len(samples), causes=names)]


def other_cores(measurements: Iterable[Measurement]) -> float | None:
    """Mean cores of the case's CPUs used by other programs while blocks were timed, over all rounds.

    This is the CPU time of all processes, minus that of the case and of this program. None if the samples
    span too little time.
    """
    processes = [
        process for process in _sampled(measurements) if process.telemetry.busy_s and process.telemetry.own_s
    ]
    return _rate([(process.others_s, process.span_s) for process in processes])


def stolen_cores(measurements: Iterable[Measurement]) -> float | None:
    """Mean cores of the case's CPUs that the hypervisor withheld; None if unknown."""
    processes = [process for process in _sampled(measurements) if process.telemetry.steal_s]
    return _rate([(process.telemetry.steal_s[-1], process.span_s) for process in processes])


def memory_waiting(measurements: Iterable[Measurement]) -> float | None:
    """Share of the time in which some task waited for memory; None if unknown."""
    processes = [process for process in _sampled(measurements) if process.telemetry.waited_s]
    return _rate([(process.telemetry.waited_s[-1], process.span_s) for process in processes])


def stopped_by_quota(measurements: Iterable[Measurement]) -> float | None:
    """Share of the time in which a cgroup quota stopped the case, mean over its CPUs; None if unknown."""
    processes = [process for process in _sampled(measurements) if len(process.telemetry.throttled_s) > 1]
    # The kernel adds up the stopped time of all CPUs.
    span_s = sum(process.span_s * process.telemetry.cpus for process in processes)
    stopped_s = sum(process.telemetry.throttled_s[-1] for process in processes)
    return min(stopped_s / span_s, 1.0) if span_s > 0 else None


def _rate(amounts: Sequence[tuple[float, float]]) -> float | None:
    """Sum of the amounts divided by the sum of their seconds, at least 0; None for too short a time."""
    span_s = sum(seconds for _, seconds in amounts)
    return max(sum(amount for amount, _ in amounts) / span_s, 0.0) if span_s >= MIN_SPAN_S else None


def contended(measurements: Sequence[Measurement]) -> list[Note]:
    """Notes on other programs, the hypervisor or a quota, if they took enough to affect a step."""
    telemetry = [process.telemetry for process in _sampled(measurements)]
    limit = tolerated_cores(max((samples.cpus for samples in telemetry), default=1))
    notes = []
    if (cores := other_cores(measurements) or 0.0) > limit:
        notes.append(note(NoteKind.OTHER_PROCESSES, cores=cores))
    if (cores := stolen_cores(measurements) or 0.0) > limit:
        notes.append(note(NoteKind.STOLEN_TIME, cores=cores))
    if (share := stopped_by_quota(measurements) or 0.0) > MAX_STOPPED:
        notes.append(note(NoteKind.QUOTA, share=share))
    processes = max((count for samples in telemetry for count in samples.gpu_processes), default=0)
    if processes > 1:
        notes.append(note(NoteKind.SHARED_GPU, processes=processes))
    return notes


def step_s(measurement: Measurement) -> float:
    """Seconds of a step in one process: the median, which is robust to a few interrupted blocks.

    If a CPU quota stopped the process it is the mean, since the stops are part of every step there.
    """
    stops = measurement.telemetry.throttled_s[-1:] if measurement.telemetry else ()
    if any(stops) and (stopped_by_quota([measurement]) or 0.0) > MAX_STOPPED:  # `any` first, for speed
        return measurement.mean_step_s
    return measurement.median_step_s


def mean_notes(measurements: Sequence[Measurement]) -> list[Note]:
    """A note if the mean step differs much from the median, over all rounds."""
    ratios = [
        measurement.mean_step_s / step for measurement in measurements if (step := step_s(measurement)) > 0
    ]
    ratio = mean(ratios) if ratios else 1.0
    if 1 / (1 + MEAN_APART) <= ratio <= 1 + MEAN_APART:
        return []
    return [note(NoteKind.MEAN_APART, times=ratio)]


def energy_j(measurement: Measurement) -> float | str:
    """Joules of the device per step, or the reason why they are unknown.

    Mean power between the first and the last sample of the window, times the length of the window, divided by
    the number of steps. It is the total power of the device, with idle power and other programs.
    """
    if measurement.cleared:
        return "clearing the caches would be in it"
    if not (processes := _sampled([measurement])):
        return "not measured"
    (process,) = processes
    joules = process.telemetry.energy_j
    if not joules:
        return process.telemetry.no_energy or "not measured"
    if process.span_s < MIN_ENERGY_S:
        return f"blocks were timed for {process.length_s:.1f} s, needs {MIN_ENERGY_S:.0f} s"
    if joules[-1] <= 0:
        return "the counter did not move"
    steps = measurement.iterations * len(measurement.block_s)
    return joules[-1] / process.span_s * process.length_s / steps
