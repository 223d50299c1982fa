"""Notes: caveats on a measurement, stored as a kind with data and formatted as text when shown.

Standard library only, since workers under foreign interpreters import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from benchbench.format import count_of, percent, ratio, share, size

Datum = float | int | str


class NoteKind(StrEnum):
    """Subject of a note."""

    TEXT = "text"  # a whole sentence, as in schema 1; its datum is `text`
    SIMULATED = "simulated"
    UNRANKED = "unranked"
    OVERSUBSCRIBED = "oversubscribed"
    BATCH_STATISTICS = "batch_statistics"
    PIPELINE = "pipeline"
    EXECUTED = "executed"
    RECOMPILED = "recompiled"
    MORE_PRECISE = "more_precise"
    EXPORT_IN_COLD_START = "export_in_cold_start"
    CLEARING_IN_PEAKS = "clearing_in_peaks"
    COPIES_IN_PEAKS = "copies_in_peaks"
    INPUTS_EXCEED_CACHE = "inputs_exceed_cache"
    SHARED_PROCESS = "shared_process"
    WARM_UP_UNKNOWN = "warm_up_unknown"
    SAMPLES_NOT_KEPT = "samples_not_kept"
    NOT_SAMPLED = "not_sampled"
    SAMPLING_ENDED = "sampling_ended"
    MISSING_ROUNDS = "missing_rounds"
    RESUMED = "resumed"
    STILL_WARMING_UP = "still_warming_up"
    IMPRECISE = "imprecise"
    LAUNCH_BOUND = "launch_bound"
    TIMER_COST = "timer_cost"
    MEAN_APART = "mean_apart"
    INTERRUPTED_BLOCKS = "interrupted_blocks"
    ABOVE_CEILING = "above_ceiling"
    THROTTLED = "throttled"
    POWER_CAP = "power_cap"
    OTHER_PROCESSES = "other_processes"
    STOLEN_TIME = "stolen_time"
    QUOTA = "quota"
    SHARED_GPU = "shared_gpu"
    SHORT_OF_MEMORY = "short_of_memory"
    DRIFTED = "drifted"
    UNEVEN_ROUNDS = "uneven_rounds"
    NOT_PROFILED = "not_profiled"
    SIDE_BY_SIDE = "side_by_side"
    STAGES_IDLE = "stages_idle"
    UNVERIFIED = "unverified"
    HIDDEN_WEIGHTS = "hidden_weights"
    ATTENTION = "attention"
    SKIPPED_GRAPHS = "skipped_graphs"
    HOST_WAITS = "host_waits"
    LOSSY = "lossy"
    HIDDEN_UPDATES = "hidden_updates"
    WEIGHTS_AS_THEY_ARE = "weights_as_they_are"
    NOT_COMPARED = "not_compared"
    HEAT_IN_PARTS = "heat_in_parts"
    MEASURED_ALONE = "measured_alone"
    COMPILED_LATER = "compiled_later"
    DEVICE_NOT_VERIFIED = "device_not_verified"
    COPIES_IN_STEP = "copies_in_step"


# Kinds that exclude a speed from rankings.
UNRANKED = (NoteKind.UNRANKED, NoteKind.OVERSUBSCRIBED, NoteKind.UNVERIFIED)
CONTENTION = (NoteKind.OTHER_PROCESSES, NoteKind.STOLEN_TIME, NoteKind.QUOTA, NoteKind.SHARED_GPU)


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about a measurement. `data` has the numbers and names in its text."""

    kind: NoteKind
    data: Mapping[str, Datum] = field(default_factory=dict, hash=False)

    @property
    def clause(self) -> str:
        """Text without the prefix: `other processes used 0.5 of a core`."""
        return CLAUSES[self.kind].format_map(_FormattedData(self.data))

    @property
    def text(self) -> str:
        """Sentence with the prefix: `contended: other processes used 0.5 of a core`."""
        return f"{PREFIXES.get(self.kind, '')}{self.clause}"


def note(kind: NoteKind, **data: Datum) -> Note:
    return Note(kind, data)


def plain(text: str) -> Note:
    """Note of a whole sentence."""
    return Note(NoteKind.TEXT, {"text": text})


def _rounds(count: float) -> str:
    return count_of(int(count), "round")


def _cores(count: float) -> str:
    """`0.5 of a core`, `1.6 cores`."""
    return f"{count:.1f} of a core" if count < 0.95 else f"{count:.1f} cores"


FORMATS: Mapping[str, Callable[[float], str]] = {
    "share": percent,
    "limit": percent,
    "allowed": share,
    "hidden": percent,
    "waiting": percent,
    "times": ratio,
    "bytes": size,
    "cores": _cores,
    "rounds": _rounds,
}
PREFIXES = {
    NoteKind.UNRANKED: "not ranked: ",
    NoteKind.OVERSUBSCRIBED: "oversubscribed: ",
    NoteKind.LAUNCH_BOUND: "launch-bound: ",
    NoteKind.THROTTLED: "throttled: ",
    NoteKind.SHORT_OF_MEMORY: "short of memory: ",
    NoteKind.DRIFTED: "drifted: ",
    NoteKind.UNEVEN_ROUNDS: "uneven: ",
    NoteKind.NOT_PROFILED: "profile: ",
    NoteKind.UNVERIFIED: "unverified: ",
    NoteKind.LOSSY: "lossy: ",
    **dict.fromkeys(CONTENTION, "contended: "),
}
CLAUSES = {
    NoteKind.TEXT: "{text}",
    NoteKind.SIMULATED: "simulated: nothing was computed, so nothing was verified",
    NoteKind.UNRANKED: "{reason}",
    NoteKind.OVERSUBSCRIBED: "{ranks} devices share fewer cores, so it is not ranked",
    NoteKind.BATCH_STATISTICS: "batch normalisation takes its statistics over {extent}, "
    "as its reference does",
    NoteKind.PIPELINE: "{micro_batches} micro-batches pass through {stages} stages: with equally long "
    "stages, each waits for {share} of a step",
    NoteKind.EXECUTED: "executes {times} the FLOPs that are counted: {what}",
    NoteKind.RECOMPILED: "recompiled while timed, {count}×: the step's graph kept changing",
    NoteKind.COMPILED_LATER: "compiled {count}× after its first call, as for Python numbers that change",
    NoteKind.MORE_PRECISE: "its {output} is {dtype}, more precise than the requested {asked}",
    NoteKind.EXPORT_IN_COLD_START: "cold start and host memory include the export from torch",
    NoteKind.CLEARING_IN_PEAKS: "memory peaks include {bytes} that clear the caches",
    NoteKind.COPIES_IN_PEAKS: "inputs rotate among {copies} copies; memory peaks include their {bytes}",
    NoteKind.INPUTS_EXCEED_CACHE: "inputs of {bytes} exceed the cache anyway: one copy",
    NoteKind.SHARED_PROCESS: "measured in the test's process, whose host memory it shares",
    NoteKind.WARM_UP_UNKNOWN: "measured by {tool}: unknown whether warm-up was complete",
    NoteKind.SAMPLES_NOT_KEPT: "{tool} stored no samples: the {what} of {count} is the only value of a "
    "process",
    NoteKind.NOT_SAMPLED: "{reason}",
    NoteKind.SAMPLING_ENDED: "telemetry ended early: {error}",
    NoteKind.MISSING_ROUNDS: "{count} of {rounds}",
    NoteKind.RESUMED: "measured in {parts} parts, as the run was resumed; their medians are {times} apart",
    NoteKind.STILL_WARMING_UP: "still warming up when measured, in {count} of {rounds}",
    NoteKind.IMPRECISE: "less precise than asked in {count} of {rounds} (stopped by {stopped_by})",
    NoteKind.LAUNCH_BOUND: "launching took the host {share} of the device's time, in {count} of {rounds}",
    NoteKind.TIMER_COST: "timing takes {share} of a block, more than {limit}",
    NoteKind.MEAN_APART: "the mean step took {times} the median, on which latency and rates are based",
    NoteKind.INTERRUPTED_BLOCKS: "a few blocks were interrupted for long, in {count} of {rounds}",
    NoteKind.ABOVE_CEILING: "{times} the FLOP/s of the best GEMM measured here: its algorithm saves "
    "multiplications, or the ceilings are out of date ({command})",
    NoteKind.THROTTLED: "{share} of {samples} samples ({causes})",
    NoteKind.POWER_CAP: "at the GPU's power limit in {share} of {samples} samples, as large products usually "
    "are: compare only with the same limit",
    NoteKind.OTHER_PROCESSES: "other processes used {cores}",
    NoteKind.STOLEN_TIME: "the hypervisor withheld {cores}",
    NoteKind.QUOTA: "the CPU quota stopped it {share} of the time, so its times are means of all steps",
    NoteKind.SHARED_GPU: "up to {processes} processes computed on the GPU at once",
    NoteKind.SHORT_OF_MEMORY: "tasks waited {share} of the time",
    NoteKind.DRIFTED: "steps became {share} {what} from the first round to the last, "
    "in {cases} cases together",
    NoteKind.UNEVEN_ROUNDS: "the slowest round took {share} longer than the fastest, "
    "in {cases} cases together",
    NoteKind.NOT_PROFILED: "{reason}",
    NoteKind.SIDE_BY_SIDE: "{hidden} of the shorter of its two parts is hidden behind the longer; "
    "{waiting} of a step is waiting",
    NoteKind.STAGES_IDLE: "a stage was idle for {share} of a profiled step on average: the bubble, transfers "
    "between stages, waiting for slower stages, and Python between operators",
    NoteKind.UNVERIFIED: "{reason}",
    NoteKind.HOST_WAITS: "a step waits for the device before it returns, so none is launched ahead; possible "
    "causes are a scaled loss, pageable memory or a barrier",
    NoteKind.SKIPPED_GRAPHS: "inductor made no CUDA graph for {count} of the programs, although {mode} "
    "requests it",
    NoteKind.ATTENTION: "attention is {by}",
    NoteKind.HIDDEN_WEIGHTS: "verification does not cover {share} of the weights: if these rows were zero, "
    "all outputs would stay within their tolerance",
    NoteKind.NOT_COMPARED: "these outputs are not compared: {outputs} (rounding or chance alone changes them "
    "too much, or they are empty)",
    NoteKind.LOSSY: "{how}; verified to {allowed} only, so smaller errors are not detected",
    NoteKind.HIDDEN_UPDATES: "verification does not cover the updates of {share} of the weights: they are no "
    "larger than rounding errors",
    NoteKind.HEAT_IN_PARTS: "measured in {parts} groups: memory does not hold all cases at once",
    NoteKind.MEASURED_ALONE: "measured alone, one after another: its process does not take turns with others",
    NoteKind.DEVICE_NOT_VERIFIED: "{device} devices are not yet verified by us on this hardware",
    NoteKind.COPIES_IN_STEP: "a step includes the copies of its inputs and outputs between host and device",
    NoteKind.WEIGHTS_AS_THEY_ARE: "weights as they are: all elements of {count} of its tensors are equal, "
    "and verification does not cover the use of such a bias of zeros or scale of ones",
}


class _FormattedData(dict[str, Datum]):
    """Data with numbers formatted for a sentence."""

    def __getitem__(self, name: str) -> Datum:
        value = super().__getitem__(name)
        return FORMATS[name](float(value)) if name in FORMATS else value
