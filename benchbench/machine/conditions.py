"""What surrounded a measurement, judged from its telemetry: neighbours, throttling, energy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.machine.nvml import POWER_CAP, THROTTLED
from benchbench.model.measurement import Measurement, Telemetry, Window
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.record import Record
from benchbench.stats import mean, median

LEAST_SPAN_S = 0.5  # to tell how busy CPUs were: fifty ticks of /proc/stat
LEAST_ENERGY_S = 2.0  # NVML's counter moves every 20 to 100 ms: at most 5 % of this
SLOW_CLOCK = 0.75  # of the run's median; below it nvbench calls a clock throttled
MOST_THROTTLED = 0.1  # of the samples
MOST_STOPPED = 0.01  # of the time: above it, being stopped by a quota shows
MEAN_APART = 0.05  # of the median: beyond what blocks of steady steps differ by (docs/measuring.md)
MOST_WAITING = 0.01  # of the time: above it, what waited for memory shows


def tolerated_cores(threads: int) -> float:
    """Cores that others may use of the CPUs a case runs on before the case counts as contended.

    Threads that share a step equally wait for the slowest of them: what others take may all come from
    one, and a tenth of its core makes the step a tenth longer. Housekeeping grows with the CPUs, so on
    many it is 2 % of them.
    """
    return max(0.1, 0.02 * threads)


def usual_mhz(records: Iterable[Record]) -> dict[str, float]:
    """Device → the median SM clock of its samples in a run."""
    found: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record.outcome, Measurement) and record.outcome.telemetry:
            found.setdefault(record.case.device, []).extend(record.outcome.telemetry.sm_mhz)
    return {device: median(clocks) for device, clocks in found.items() if clocks}


def condition_notes(measured: Sequence[Measurement], usual: float | None = None) -> list[Note]:
    """What a reader must know of the surroundings of a case's processes.

    `usual`: the device's SM clock in MHz, from `usual_mhz`.
    """
    seen = _seen(measured)
    found = [*_throttled(seen, usual), *contended(measured)]
    if (share := memory_waiting(measured) or 0.0) > MOST_WAITING:
        found.append(note(NoteKind.SHORT_OF_MEMORY, share=share))
    return found + list(dict.fromkeys(each for one in seen for each in one.telemetry.notes))


@dataclass(frozen=True, slots=True)
class _Seen:
    """One process whose surroundings were sampled."""

    window: Window
    telemetry: Telemetry
    length_s: float  # in which blocks were timed

    @property
    def span_s(self) -> float:
        """Seconds from the first sample to the last."""
        at_s = self.telemetry.at_s
        return at_s[-1] - at_s[0] if at_s else 0.0

    @property
    def others_s(self) -> float:
        """CPU seconds that neither the case nor this program used, between the samples."""
        case_s = self.window.cpu_s * self.span_s / self.length_s if self.length_s > 0 else 0.0
        return self.telemetry.busy_s[-1] - self.telemetry.own_s[-1] - case_s


def _seen(measured: Iterable[Measurement]) -> list[_Seen]:
    return [
        _Seen(process.window, process.telemetry, process.timed_s)
        for process in measured
        if process.window and process.telemetry
    ]


def throttled_samples(telemetry: Telemetry, usual: float | None = None) -> list[frozenset[str]]:
    """What held the GPU back at each sample; empty where nothing did."""
    samples: list[set[str]] = [set() for _ in telemetry.at_s]
    for marks, reasons in zip(samples, telemetry.reasons, strict=False):
        marks.update(name for bit, name in THROTTLED.items() if reasons & bit)
    for marks, clock in zip(samples, telemetry.sm_mhz, strict=False):
        marks.update(["low SM clock"] if usual and clock < SLOW_CLOCK * usual else [])
    return [frozenset(marks) for marks in samples]


def _throttled(seen: Sequence[_Seen], usual: float | None) -> list[Note]:
    samples = [marks for each in seen for marks in throttled_samples(each.telemetry, usual)]
    marked = sum(bool(marks) for marks in samples)
    if marked <= MOST_THROTTLED * len(samples):
        return []
    causes = Counter(name for marks in samples for name in marks)
    if set(causes) == {POWER_CAP}:
        return [note(NoteKind.POWER_CAP, share=marked / len(samples), samples=len(samples))]
    listed = ", ".join(name for name, _ in sorted(causes.items(), key=lambda each: (-each[1], each[0])))
    return [note(NoteKind.THROTTLED, share=marked / len(samples), samples=len(samples), causes=listed)]


def other_cores(measured: Iterable[Measurement]) -> float | None:
    """Cores that other processes used of the case's CPUs while its blocks were timed, all rounds together.

    What every process used, less what the case's own and this program's did. None: seen for too short.
    """
    known = [each for each in _seen(measured) if each.telemetry.busy_s and each.telemetry.own_s]
    return _rate([(each.others_s, each.span_s) for each in known])


def stolen_cores(measured: Iterable[Measurement]) -> float | None:
    """Cores' worth of time that the hypervisor withheld of the case's CPUs meanwhile."""
    known = [each for each in _seen(measured) if each.telemetry.steal_s]
    return _rate([(each.telemetry.steal_s[-1], each.span_s) for each in known])


def memory_waiting(measured: Iterable[Measurement]) -> float | None:
    """The share of the time in which some task waited for memory."""
    known = [each for each in _seen(measured) if each.telemetry.waited_s]
    return _rate([(each.telemetry.waited_s[-1], each.span_s) for each in known])


def stopped_by_quota(measured: Iterable[Measurement]) -> float | None:
    """The share of its time in which a cgroup's quota stopped the case; None where that was not seen.

    The kernel adds up what each CPU was stopped, so of several it is their mean.
    """
    known = [each for each in _seen(measured) if len(each.telemetry.throttled_s) > 1]
    span = sum(each.span_s * each.telemetry.cpus for each in known)
    return min(sum(each.telemetry.throttled_s[-1] for each in known) / span, 1.0) if span > 0 else None


def _rate(amounts: Sequence[tuple[float, float]]) -> float | None:
    """All amounts over all seconds, not below 0."""
    span = sum(seconds for _, seconds in amounts)
    return max(sum(amount for amount, _ in amounts) / span, 0.0) if span >= LEAST_SPAN_S else None


def contended(measured: Sequence[Measurement]) -> list[Note]:
    """What others or a quota took of the CPUs or the GPU meanwhile, where it was enough to show in a step."""
    telemetry = [each.telemetry for each in _seen(measured)]
    limit = tolerated_cores(max((each.cpus for each in telemetry), default=1))
    found = []
    if (others := other_cores(measured) or 0.0) > limit:
        found.append(note(NoteKind.OTHER_PROCESSES, cores=others))
    if (stolen := stolen_cores(measured) or 0.0) > limit:
        found.append(note(NoteKind.STOLEN_TIME, cores=stolen))
    if (stopped := stopped_by_quota(measured) or 0.0) > MOST_STOPPED:
        found.append(note(NoteKind.QUOTA, share=stopped))
    if (most := max((count for each in telemetry for count in each.gpu_processes), default=0)) > 1:
        found.append(note(NoteKind.SHARED_GPU, processes=most))
    return found


def step_s(measured: Measurement) -> float:
    """The time of a step in one process: the median, which a few interrupted blocks do not move.

    Where a CPU quota stopped the process it is the mean: a step without the stops is one that nobody gets.
    """
    stops = measured.telemetry.throttled_s[-1:] if measured.telemetry else ()
    if any(stops) and (stopped_by_quota([measured]) or 0.0) > MOST_STOPPED:  # asked often, and seldom stopped
        return measured.mean_step_s
    return measured.median_step_s


def mean_notes(measured: Sequence[Measurement]) -> list[Note]:
    """A note where the headline's medians hide time that passed, over all rounds together."""
    known = [each.mean_step_s / step for each in measured if (step := step_s(each)) > 0]
    times = mean(known) if known else 1.0
    if 1 / (1 + MEAN_APART) <= times <= 1 + MEAN_APART:
        return []
    return [note(NoteKind.MEAN_APART, times=times)]


def energy_j(measured: Measurement) -> float | str:
    """Joules of the device for a step, or why that is not known; never an estimate.

    Mean power between the first and the last sample of the window, over the window, divided by its
    steps. The device's whole power: what it draws at rest and for others is in it.
    """
    if measured.cleared:
        return "clearing the caches would be in it"
    if not (seen := _seen([measured])):
        return "not measured"
    joules, span, length = seen[0].telemetry.energy_j, seen[0].span_s, seen[0].length_s
    if not joules:
        return seen[0].telemetry.no_energy or "not measured"
    if span < LEAST_ENERGY_S:
        return f"blocks were timed for {length:.1f} s, needs {LEAST_ENERGY_S:.0f} s"
    if joules[-1] <= 0:
        return "the counter did not move"
    return joules[-1] / span * length / (measured.iterations * len(measured.block_s))
