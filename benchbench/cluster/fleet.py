"""Measure a suite on every machine of a cluster; what a lost machine leaves is given to another."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from benchbench import __version__, paths
from benchbench.cluster.machines import (
    Absent,
    FleetInfo,
    FleetMachine,
    Share,
    ShareState,
    begun_again,
    file_differences,
    hardware_differences,
    kept,
    look_at,
    one_of_each_kind,
    read_fleet,
    runs_of,
    shares_left,
    sibling,
    suite_text,
    version_differences,
)
from benchbench.cluster.messages import (
    UNREADABLE,
    Cluster,
    Deadlines,
    Ended,
    LineKind,
    Listener,
    Node,
    NodeJob,
    NodeLine,
    with_suites,
)
from benchbench.cluster.receiver import Assignment, Receiver, ShareProgress
from benchbench.errors import CannotWrite, NothingToMeasure, UnreadableInput, UsageError
from benchbench.launch import own_models
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.record import Record
from benchbench.plan.suite import suite_path
from benchbench.redaction import own_redaction
from benchbench.running import measure, request
from benchbench.running.observer import RunObserver
from benchbench.running.request import Request
from benchbench.store import runs, selectors
from benchbench.store.naming import FLEET, INSTEAD_OF, MACHINE, new_id

GONE = "it is no longer in the cluster"
ALONE = "{reason}; no other machine of its type is left"


class FleetObserver:
    """Ignores everything: a subclass overrides what it wants to know."""

    def note(self, text: str) -> None:
        """Note a sentence that is worth keeping on the screen."""

    def changed(self, shares: Sequence[ShareProgress]) -> None:
        """Note how far all machines have come; called often."""

    def record(self, machine: str, record: Record) -> None:
        """Note a record that a machine sent and that is now stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """What came of a fleet: a share for each machine, and for each one that took over from another."""

    info: FleetInfo
    shares: tuple[ShareProgress, ...]
    absent: tuple[Absent, ...] = ()


class Fleet:
    """Gives shares to machines, one at a time to each, until all are done or no machine is left for them."""

    def __init__(
        self,
        info: FleetInfo,
        nodes: Sequence[Node],
        listener: Listener,
        results: Path,
        observer: FleetObserver,
        expected: Request | None = None,
    ) -> None:
        """`nodes`: those of the machines of `info` that are there now.

        `expected`: what the options of `info` ask for, where that is known here.
        """
        self._info = info
        self._nodes = {node.name: node for node in nodes}
        self._kinds = {each.name: each.kind for each in info.machines}
        self._listener = listener
        self._results = results
        self._observer = observer
        self._expected = expected
        self._redact = own_redaction()
        self._receivers: list[Receiver] = []
        self._waiting: list[Receiver] = []
        self._busy: dict[int, Receiver] = {}
        self._works: dict[str, dict[int | str, str]] = {}  # workload at its sizes → version → machine

    def measure(self, shares: Iterable[Share]) -> tuple[ShareProgress, ...]:
        """Measure the shares. What is stored when an exception ends it can be resumed. Raises CannotWrite."""
        try:
            for share in shares:
                self._take_on(share)
            while self._waiting or self._busy:
                self._start_idle()
                for task, said in self._listener.hear():
                    self._heed(task, said)
                self._observer.changed(self._progress())
        finally:
            self._listener.stop()
        return self._progress()

    def _take_on(self, share: Share) -> None:
        """Queue a share for its machine; where that is gone, what is left of the share goes to another."""
        receiver = Receiver(share, self._results, self._assignment(share), self._redact)
        self._receivers.append(receiver)
        with self._alone(receiver):
            receiver.recall()
            if share.machine in self._nodes:
                self._waiting.append(receiver)
            else:
                self._lose(receiver, GONE)

    def _start_idle(self) -> None:
        taken = {each.share.machine for each in self._busy.values()}
        for receiver in list(self._waiting):
            if receiver.share.machine not in taken:
                taken.add(receiver.share.machine)
                self._waiting.remove(receiver)
                node = self._nodes[receiver.share.machine]
                with self._alone(receiver):
                    receiver.starting()
                    self._busy[self._listener.start(node, self._job(receiver.share))] = receiver

    def _heed(self, task: int, said: NodeLine | Ended) -> None:
        if (receiver := self._busy.get(task)) is None:
            return  # what a machine that failed had sent besides
        if isinstance(said, Ended):
            del self._busy[task]
            with self._alone(receiver):
                self._over(receiver, said.lost)
            return
        machine, failed = receiver.share.machine, True
        with self._alone(receiver):
            if record := receiver.take(said):
                self._observer.record(machine, record)
                self._compare_work(machine, record)
            elif said.kind is LineKind.NOTE:
                self._observer.note(f"{machine}: {said.text}")
            failed = False
        if failed:
            del self._busy[task]
            self._listener.give_up(task)

    def _compare_work(self, machine: str, record: Record) -> None:
        """Note where machines measure other work under the same name: a file that a model imports differs."""
        if isinstance(record.outcome, Measurement):
            work = record.case.work
            known, version = self._works.setdefault(work, {}), record.outcome.workload_version
            if known and version not in known:
                first, *_ = known.values()
                self._observer.note(f"{machine} measures another {work} than {first}: they are not compared")
            known.setdefault(version, machine)

    @contextmanager
    def _alone(self, receiver: Receiver) -> Iterator[None]:
        """A context in which an error fails the one machine alone, unless nothing can be stored any longer.

        Raises CannotWrite.
        """
        try:
            yield
        except CannotWrite as error:
            if receiver.is_there:
                raise
            receiver.fail(str(error))
        except UnreadableInput as error:
            receiver.fail(UNREADABLE.format(error=error))
        except Exception as error:  # noqa: BLE001 - one machine must not end what all others measure
            receiver.fail(f"{type(error).__name__}: {error}")

    def _over(self, receiver: Receiver, lost: str) -> None:
        if not lost:
            receiver.end()
            return
        gone = self._nodes.pop(receiver.share.machine)
        waiting = [each for each in self._waiting if each.share.machine == gone.name]
        self._waiting = [each for each in self._waiting if each not in waiting]
        for each in (receiver, *waiting):
            with self._alone(each):
                self._lose(each, lost)

    def _lose(self, receiver: Receiver, reason: str) -> None:
        """Store what is unfinished as lost, and have a machine of the same kind begin it again."""
        share = receiver.share
        failed = {each.share.machine for each in self._receivers if each.progress.state is ShareState.FAILED}
        there = [each for each in self._info.machines if each.name in self._nodes.keys() - failed]
        load = Counter(each.share.machine for each in (*self._waiting, *self._busy.values()))
        other = sibling(share.kind, there, load)
        cases = receiver.lose(reason if other else ALONE.format(reason=reason))
        begins = bool(other) and receiver.progress.state is ShareState.LOST
        where = f"; begun again on {other}" if begins else ""
        self._observer.note(f"{share.machine} is lost: {receiver.progress.reason}{where}")
        if begins:
            receiver.begun_again(other)
            self._take_on(begun_again(share, receiver.info, cases, other))

    def _progress(self) -> tuple[ShareProgress, ...]:
        return tuple(each.progress for each in self._receivers)

    def _assignment(self, share: Share) -> Assignment:
        """The tags, policy and seed that the share's run must have."""
        tags = {**self._info.options.tags, FLEET: self._info.id, MACHINE: share.machine}
        if share.instead_of:
            tags[INSTEAD_OF] = share.instead_of
        if share.lost:
            return Assignment(tags=tags, policy=share.lost.policy, seed=share.lost.seed)
        if self._expected is None:
            return Assignment(tags=tags)
        works = frozenset((suite, entry.workload) for suite, entry in self._expected.entries)
        return Assignment(tags=tags, policy=self._expected.policy, seed=self._expected.seed, works=works)

    def _job(self, share: Share) -> NodeJob:
        options = replace(self._info.options, tags=self._assignment(share).tags)
        if share.interrupted:
            name, asked = share.interrupted.id, self._info.options
            folder = self._results / runs.RUNS / name
            return NodeJob(
                kind="resume",
                options=MeasureOptions(
                    model=asked.model, pythons=asked.pythons, command=asked.command, wait_s=asked.wait_s
                ),
                run=name,
                head=(folder / runs.HEAD).read_text(),
                records=(folder / runs.RECORDS).read_text(),
            )
        if share.lost:
            again, seed = share.lost, share.lost.seed
            return NodeJob(kind="again", options=options, cases=share.cases, policy=again.policy, seed=seed)
        return NodeJob(kind="measure", options=options, suites=self._info.suites)


class MachineChoice(StrEnum):
    """Which machines measure: every one, or one of each accelerator type, the others standing by."""

    NODE = "node"
    ACCELERATOR_TYPE = "accelerator-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What to measure, and where. `resume`: the fleet to finish, `""` the newest, None a new one."""

    measure: MeasureOptions
    each: MachineChoice = MachineChoice.NODE
    resume: str | None = None
    allow_different: bool = False  # versions of accelbench
    deadlines: Deadlines = field(default_factory=Deadlines)


def measure_fleet(
    asked: FleetOptions,
    cluster: Cluster,
    results: Path,
    observer: FleetObserver,
    clock: Callable[[], float] = monotonic,
) -> FleetResult:
    """A run of each machine's share, stored in `results` as records come. `clock`: seconds, for deadlines.

    Raises UsageError, for versions of accelbench or files of a model that differ too; NothingToMeasure where
    no machine answers; CannotWrite, UnreadableInput.
    """
    earlier = None if asked.resume is None else _to_finish(asked, results)
    options = asked.measure.resuming(earlier.options) if earlier else request.with_project(asked.measure)
    with measure.models_described(options, _Notes(observer)) as models:
        if not earlier:
            request.request(options, models)  # a mistake is told before any machine is asked
        asked = dataclasses.replace(asked, measure=options)
        return _measured(asked, models, earlier, cluster, results, observer, clock)


class _Notes(RunObserver):
    """Hands on notes to who follows a fleet."""

    def __init__(self, observer: FleetObserver) -> None:
        self._observer = observer

    def note(self, text: str) -> None:
        """A line."""
        self._observer.note(text)


def _measured(
    asked: FleetOptions,
    models: Sequence[str],
    earlier: FleetInfo | None,
    cluster: Cluster,
    results: Path,
    observer: FleetObserver,
    clock: Callable[[], float],
) -> FleetResult:
    """As `measure_fleet`, where models are described; `models`: their names."""
    listener = Listener(cluster, asked.deadlines, clock)
    nodes = cluster.nodes()
    observer.note(f"asking each machine what it has: {', '.join(node.name for node in nodes) or 'none'}")
    here, absent = look_at(nodes, listener, asked.measure)
    _check(here, absent, asked, observer)
    if earlier:
        known = {each.name: each for each in (*earlier.machines, *here)}
        info = dataclasses.replace(earlier, machines=tuple(known.values()), options=asked.measure)
        shares = shares_left(info.machines, info.measuring, runs_of(results, info.id))
    else:
        info = _new(asked, here, results)
        shares = [Share(machine=each.name, kind=each.kind) for each in here if each.name in info.measuring]
    if not shares:
        raise UsageError(f"The fleet {info.id} has ended: there is nothing to resume.", "Begin another.")
    there = {each.name for each in here}
    present = [node for node in nodes if node.name in there]
    with kept(results, info):
        observer.note(
            f"fleet {info.id} measures on {', '.join(dict.fromkeys(each.machine for each in shares))}"
        )
        fleet = Fleet(info, present, listener, results, observer, _expected(info, models))
        return FleetResult(info=info, shares=fleet.measure(shares), absent=tuple(absent))


def _expected(info: FleetInfo, models: Sequence[str]) -> request.Request | None:
    """What each machine is asked for; None where it names what is not known here, as a user's workload."""
    with TemporaryDirectory(prefix="accelbench-fleet-") as folder, suppress(UsageError):
        return request.request(with_suites(info.options, info.suites, Path(folder)), models)
    return None


def _to_finish(asked: FleetOptions, results: Path) -> FleetInfo:
    if others := asked.measure.given_and_kept:
        message = f"A fleet is resumed as it was begun: {others[0]} cannot be given again."
        raise UsageError(message, "Leave that option out.")
    info = read_fleet(results, asked.resume or "")
    models = asked.measure.model or info.options.model
    if not asked.measure.model:
        own_models.check_known(f"The fleet {info.id}", models)
    now = own_models.file_digests(models, info.options.input or "")
    if any(each.has.files != now for each in info.machines):
        what = ", ".join(dict.fromkeys(name for each in info.machines for name in each.has.files))
        message = f"The fleet {info.id} was begun with {what or 'no model of yours'} as it was then."
        raise UsageError(message, "It is finished by the same files alone; else begin another fleet.")
    return info


def _check(
    here: Sequence[FleetMachine], absent: Sequence[Absent], asked: FleetOptions, observer: FleetObserver
) -> None:
    """Report in what the machines differ. Raises NothingToMeasure, UsageError."""
    for gone in absent:
        observer.note(f"{gone.name} measures nothing: {gone.reason}")
    if not here:
        raise NothingToMeasure("No machine of the cluster answered.", "ray status shows what there is.")
    now = own_models.file_digests(asked.measure.model, asked.measure.input or "")
    if differing := file_differences(here, now):
        raise UsageError(
            f"Machines would not measure the same: {'; '.join(differing)}.",
            f"Each looks for it where the command was typed: copy {paths.working_folder()} to the same place "
            "there, or share that folder.",
        )
    for text in (*version_differences(here), *hardware_differences(here)):
        observer.note(f"machines differ in {text}")
    if others := sorted({each.has.version for each in here} - {__version__}):
        message = f"accelbench is {__version__} here, and {', '.join(others)} on some machine."
        if not asked.allow_different:
            raise UsageError(message, "Install one version; --allow-different measures all the same.")
        observer.note(message)


def _new(asked: FleetOptions, here: Sequence[FleetMachine], results: Path) -> FleetInfo:
    selectors.follow_stored(results)
    options = asked.measure
    if own := sorted({FLEET, MACHINE, INSTEAD_OF} & {*options.tags}):
        raise UsageError(f"A fleet sets the tag {own[0]!r} itself.", "Choose another name.")
    paths = [suite_path(name) for name in options.suites or (() if options.model else ("quick",))]
    measuring = here if asked.each is MachineChoice.NODE else one_of_each_kind(here)
    return FleetInfo(
        id=new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        options=dataclasses.replace(options, suites=()),
        suites=tuple((path.stem, suite_text(path)) for path in paths),
        machines=tuple(here),
        measuring=tuple(each.name for each in measuring),
    )
