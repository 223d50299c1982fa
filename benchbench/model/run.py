"""Runs: the records of one invocation and their common settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from benchbench.model.case import Case, LeftOut
from benchbench.model.device import Machine, Probe
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import Allocator, Isolation, Weights

# Of run.json and records.jsonl. 3: turns of heats; 2: notes are kinds with data; 1: notes are sentences.
SCHEMA = 3

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTEBOOKS = "benchbench.api.notebooks"  # imported by name: stored runs do not depend on reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One self-contained line: a case, a round and the outcome."""

    schema: int = SCHEMA
    case: Case
    round: int
    order: int  # position in the run
    started: float  # Unix time; a label, not used for durations
    outcome: Measurement | Failure
    framework_version: str | None
    device_model: str
    isolation: str  # fork, spawn or shared, as actually used
    stages_s: dict[str, float] = field(default_factory=dict)  # wall time of the case by stage
    part: int = 0  # part of a resumed run: 0 before the first interruption, then 1, …


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Amount of measuring. Sources: docs/measuring.md."""

    name: str
    rounds: int
    precision: float = 0.01  # half width of the median's interval / median
    min_s: float = 0.5  # of measuring, per process
    max_s: float = 10.0
    max_blocks: int = 1000
    min_blocks: int = 30  # for fast steps
    least_blocks: int = 5  # for slow steps
    warmup_min_s: float = 0.5
    warmup_min_blocks: int = 8
    warmup_max_s: float = 20.0
    window_s: float = 0.5  # span of a warm-up window of at most 20 blocks
    slow_s: float = 3.0  # fewer than `min_blocks` are enough if they span this
    most_rounds: int | None = None  # limit for undecided works; None: no additional rounds
    budget_s: float | None = None  # wall time for more rounds, of undecided works first, then of noisy cases
    settled: float = 0.005  # half width between processes below which a budget adds no rounds
    turn_s: float = 0.03  # duration of a turn
    cycles: int = 30  # turns of each case in a heat
    min_cycles: int = 5  # for slow steps: enough if the cases took `max_s` each
    reimports: bool = True  # fork the processes of each heat from freshly imported templates

    @property
    def planned(self) -> int | None:
        """Number of rounds from which a case's spread is estimated; None means all rounds."""
        return None if self.most_rounds is None and self.budget_s is None else self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that affect results and are fixed before a worker starts."""

    threads: int
    allocator: Allocator = Allocator.STEADY
    isolation: Isolation = Isolation.FORK
    timeout_s: float = 300.0
    max_error: float | None = None  # allowed for user models on engines that reduce precision; None: no error
    input: str = ""  # file of inputs of a user's model as on the command line; "": the model's own
    weights: Weights = Weights.DRAWN  # of a user's model


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """The other one of two interleaved runs; every round has a process of each."""

    label: str  # of this run's side, as on the command line
    run: str  # id of the other run
    cases: dict[str, str]  # ids of the counterparts by case id, with omitted cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A later part of an interrupted run; `RunInfo` describes the first part."""

    started: str  # ISO 8601, UTC
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Head of a run, written before the first case starts."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    command: tuple[str, ...]
    version: str
    machine: Machine
    settings: Settings
    policy: Policy
    seed: int
    probes: tuple[Probe, ...]
    plan: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    partner: Partner | None = None
    tags: dict[str, str] = field(default_factory=dict)  # by name; `commit` is one of them
    resumed: tuple[Resumption, ...] = ()  # parts after the first, in order
    machine_id: str = ""  # id of the machine among those of its type; empty: unknown
    variables: dict[str, str] | None = None  # environment variables that affect frameworks; None: unknown
    models: dict[str, str] = field(default_factory=dict)  # the user's models by name, as on the command line
    implied_sizes: tuple[str, ...] = ()  # lines on sizes of a suite that was not named
    name_hashes: tuple[str, ...] = ()  # of host and user names, which a shared copy must not contain

    @property
    def commit(self) -> str:
        """Commit of the checkout, with `-dirty` if it was changed; empty outside of a checkout."""
        return self.tags.get("commit", "")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """A run read from disk. `damaged` describes lines that are unreadable or missing.

    A notebook shows its answer and tables.
    """

    info: RunInfo
    records: tuple[Record, ...]
    damaged: tuple[str, ...] = ()
    ended: bool = True  # False: it was interrupted, or is still being measured
    unprofiled: dict[str, str] = field(default_factory=dict)  # reasons for missing profiles by case id
    communication: dict[str, float] = field(default_factory=dict)  # share of the profiled step by case id
    idle: dict[str, float] = field(default_factory=dict)  # share in which a pipeline stage was idle

    def __repr__(self) -> str:
        """One line: id, start and the number of cases by status."""
        statuses = {record.case.id: str(record.outcome.status) for record in self.records}
        counts = ", ".join(f"{count} {status}" for status, count in Counter(statuses.values()).items())
        return f"<Run {self.info.id}, {self.info.started}: {counts or 'no records'}>"

    def _repr_html_(self) -> str:
        html: str = import_module(NOTEBOOKS).run_html(self)
        return html

    def plot(self, name: str = "") -> Figure:
        """Figure of one plot of the report: `latency`, `throughput`, … By default the first.

        Raises UsageError if there is no such plot, or nothing to plot.
        """
        figure: Figure = import_module(NOTEBOOKS).run_figure(self, name)
        return figure
