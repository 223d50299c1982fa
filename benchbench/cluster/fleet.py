"""Measure a suite on every machine of a cluster; another machine takes over the rest of a lost one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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
    describe_machines,
    file_differences,
    hardware_differences,
    locked_fleet,
    one_of_each_kind,
    read_fleet,
    reassign,
    remaining_shares,
    runs_of,
    sibling,
    suite_text,
    version_differences,
)
from benchbench.cluster.messages import (
    BEGIN_S,
    UNREADABLE,
    Cluster,
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
from benchbench.launch import user_models
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Record
from benchbench.plan.suite import suite_path
from benchbench.redaction import process_redaction
from benchbench.running import measure, request
from benchbench.running.observer import RunObserver
from benchbench.running.request import Request
from benchbench.store import runs, selectors
from benchbench.store.disk import FLEET, INSTEAD_OF, MACHINE, new_id

GONE = "it is no longer in the cluster"
NO_SIBLING = "{reason}; no other machine of its type is left"


class FleetObserver:
    """Observer that ignores every event; subclasses override methods."""

    def note(self, text: str) -> None:
        """Receive a sentence that should stay on the screen."""

    def changed(self, shares: Sequence[ShareProgress]) -> None:
        """Receive the progress of all machines; called often."""

    def record(self, machine: str, record: Record) -> None:
        """Receive a record that a machine sent and that is now stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """Result of a fleet: a share for each machine, and for each machine that took over from another."""

    info: FleetInfo
    shares: tuple[ShareProgress, ...]
    absent: tuple[Absent, ...] = ()


class Fleet:
    """Assigns shares to machines, one at a time each, until all are done or no machine is left for them."""

    def __init__(
        self,
        info: FleetInfo,
        nodes: Sequence[Node],
        listener: Listener,
        results: Path,
        observer: FleetObserver,
        expected: Request | None = None,
    ) -> None:
        """Create a fleet. `nodes`: the machines of `info` that are present.

        `expected`: the request that the options of `info` make, if it can be determined here.
        """
        self._info = info
        self._nodes = {node.name: node for node in nodes}
        self._kinds = {machine.name: machine.kind for machine in info.machines}
        self._listener = listener
        self._results = results
        self._observer = observer
        self._expected = expected
        self._redact = process_redaction()
        self._receivers: list[Receiver] = []
        self._waiting: list[Receiver] = []
        self._busy: dict[int, Receiver] = {}
        self._works: dict[str, dict[int | str, str]] = {}  # workload with sizes → version → machine

    def measure(self, shares: Iterable[Share]) -> tuple[ShareProgress, ...]:
        """Measure the shares. After an exception, stored records can be resumed. Raises CannotWrite."""
        try:
            for share in shares:
                self._queue(share)
            while self._waiting or self._busy:
                self._start_idle()
                for task, message in self._listener.receive():
                    self._handle(task, message)
                self._observer.changed(self._progress())
        finally:
            self._listener.stop()
        return self._progress()

    def _queue(self, share: Share) -> None:
        """Queue a share for its machine, or pass its rest to another if the machine is gone."""
        receiver = Receiver(share, self._results, self._assignment(share), self._redact)
        self._receivers.append(receiver)
        with self._isolate_errors(receiver):
            receiver.recall()
            if share.machine in self._nodes:
                self._waiting.append(receiver)
            else:
                self._lose(receiver, GONE)

    def _start_idle(self) -> None:
        busy_machines = {receiver.share.machine for receiver in self._busy.values()}
        for receiver in list(self._waiting):
            if receiver.share.machine not in busy_machines:
                busy_machines.add(receiver.share.machine)
                self._waiting.remove(receiver)
                node = self._nodes[receiver.share.machine]
                with self._isolate_errors(receiver):
                    receiver.starting()
                    self._busy[self._listener.start(node, self._job(receiver.share))] = receiver

    def _handle(self, task: int, message: NodeLine | Ended) -> None:
        if (receiver := self._busy.get(task)) is None:
            return  # a late message of a failed machine
        if isinstance(message, Ended):
            del self._busy[task]
            with self._isolate_errors(receiver):
                self._job_ended(receiver, message.lost)
            return
        machine, failed = receiver.share.machine, True
        with self._isolate_errors(receiver):
            if record := receiver.take(message):
                self._observer.record(machine, record)
                self._compare_work(machine, record)
            elif message.kind is LineKind.NOTE:
                self._observer.note(f"{machine}: {message.text}")
            failed = False
        if failed:
            del self._busy[task]
            self._listener.give_up(task)

    def _compare_work(self, machine: str, record: Record) -> None:
        """Note if machines measure different work under one name, as when a file that a model imports
        differs.
        """
        if isinstance(record.outcome, Measurement):
            work = record.case.work
            machines_by_version, version = self._works.setdefault(work, {}), record.outcome.workload_version
            if machines_by_version and version not in machines_by_version:
                first, *_ = machines_by_version.values()
                self._observer.note(f"{machine} measures another {work} than {first}: they are not compared")
            machines_by_version.setdefault(version, machine)

    @contextmanager
    def _isolate_errors(self, receiver: Receiver) -> Iterator[None]:
        """Context in which an error fails only this machine, unless nothing can be stored any more.

        Raises CannotWrite.
        """
        try:
            yield
        except CannotWrite as error:
            if receiver.has_folder:
                raise
            receiver.fail(str(error))
        except UnreadableInput as error:
            receiver.fail(UNREADABLE.format(error=error))
        except Exception as error:  # noqa: BLE001 - one machine must not stop the others
            receiver.fail(f"{type(error).__name__}: {error}")

    def _job_ended(self, receiver: Receiver, lost: str) -> None:
        if not lost:
            receiver.end()
            return
        node = self._nodes.pop(receiver.share.machine)
        waiting = [queued for queued in self._waiting if queued.share.machine == node.name]
        self._waiting = [queued for queued in self._waiting if queued not in waiting]
        for queued in (receiver, *waiting):
            with self._isolate_errors(queued):
                self._lose(queued, lost)

    def _lose(self, receiver: Receiver, reason: str) -> None:
        """Record the unfinished cases as lost, and restart them on a machine of the same kind."""
        share = receiver.share
        failed = {item.share.machine for item in self._receivers if item.progress.state is ShareState.FAILED}
        available = [item for item in self._info.machines if item.name in self._nodes.keys() - failed]
        load = Counter(item.share.machine for item in (*self._waiting, *self._busy.values()))
        replacement = sibling(share.kind, available, load)
        cases = receiver.lose(reason if replacement else NO_SIBLING.format(reason=reason))
        restarts = bool(replacement) and receiver.progress.state is ShareState.LOST
        restart_text = f"; begun again on {replacement}" if restarts else ""
        self._observer.note(f"{share.machine} is lost: {receiver.progress.reason}{restart_text}")
        if restarts:
            receiver.reassigned_to(replacement)
            self._queue(reassign(share, receiver.info, cases, replacement))

    def _progress(self) -> tuple[ShareProgress, ...]:
        return tuple(receiver.progress for receiver in self._receivers)

    def _assignment(self, share: Share) -> Assignment:
        """Tags, policy and seed that the share's run must have."""
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
            name, fleet_options = share.interrupted.id, self._info.options
            folder = self._results / runs.RUNS / name
            return NodeJob(
                kind="resume",
                options=MeasureOptions(
                    model=fleet_options.model,
                    pythons=fleet_options.pythons,
                    command=fleet_options.command,
                    wait_s=fleet_options.wait_s,
                ),
                run=name,
                head=(folder / runs.HEAD).read_text(),
                records=(folder / runs.RECORDS).read_text(),
            )
        if share.lost:
            lost_run, seed = share.lost, share.lost.seed
            return NodeJob(
                kind="again", options=options, cases=share.cases, policy=lost_run.policy, seed=seed
            )
        return NodeJob(kind="measure", options=options, suites=self._info.suites)


class MachineChoice(StrEnum):
    """Machines that measure: every one, or one per accelerator type with the others in reserve."""

    NODE = "node"
    ACCELERATOR_TYPE = "accelerator-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options of a fleet. `resume`: id of the fleet to finish, `""` for the newest, None for a new one."""

    measure: MeasureOptions
    each: MachineChoice = MachineChoice.NODE
    resume: str | None = None
    allow_different: bool = False  # allow different versions of accelbench
    begin_s: float = BEGIN_S  # until a machine is given up that has not started


def measure_fleet(
    fleet_options: FleetOptions,
    cluster: Cluster,
    results: Path,
    observer: FleetObserver,
    clock: Callable[[], float] = monotonic,
) -> FleetResult:
    """Measure the share of each machine, storing records in `results` as they arrive. `clock`: for deadlines.

    Raises UsageError, also if versions of accelbench or files of a model differ; NothingToMeasure if no
    machine answers; CannotWrite, UnreadableInput.
    """
    earlier = None if fleet_options.resume is None else _fleet_to_resume(fleet_options, results)
    typed = fleet_options.measure
    options = typed.resuming(earlier.options) if earlier else request.with_project(typed)
    with measure.described_models(options, _Notes(observer)) as models:
        if not earlier:
            request.request(options, models)  # reports mistakes before any machine is involved
        fleet_options = dataclasses.replace(fleet_options, measure=options)
        return _measure_described(fleet_options, models, earlier, cluster, results, observer, clock)


class _Notes(RunObserver):
    """Passes notes on to the observer of a fleet."""

    def __init__(self, observer: FleetObserver) -> None:
        self._observer = observer

    def note(self, text: str) -> None:
        self._observer.note(text)


def _measure_described(
    fleet_options: FleetOptions,
    models: Sequence[str],
    earlier: FleetInfo | None,
    cluster: Cluster,
    results: Path,
    observer: FleetObserver,
    clock: Callable[[], float],
) -> FleetResult:
    """Measure with described models. `models`: their names."""
    listener = Listener(cluster, fleet_options.begin_s, clock)
    nodes = cluster.nodes()
    observer.note(f"asking for descriptions of machines: {', '.join(node.name for node in nodes) or 'none'}")
    machines, absent = describe_machines(nodes, listener, fleet_options.measure)
    _check(machines, absent, fleet_options, observer)
    if earlier:
        machines_by_name = {machine.name: machine for machine in (*earlier.machines, *machines)}
        info = dataclasses.replace(
            earlier, machines=tuple(machines_by_name.values()), options=fleet_options.measure
        )
        shares = remaining_shares(info.machines, info.measuring, runs_of(results, info.id))
    else:
        info = _new_fleet(fleet_options, machines, results)
        shares = [
            Share(machine=machine.name, kind=machine.kind)
            for machine in machines
            if machine.name in info.measuring
        ]
    if not shares:
        raise UsageError(f"The fleet {info.id} has ended: there is nothing to resume.", "Begin another.")
    present_names = {machine.name for machine in machines}
    present = [node for node in nodes if node.name in present_names]
    with locked_fleet(results, info):
        observer.note(
            f"fleet {info.id} measures on {', '.join(dict.fromkeys(share.machine for share in shares))}"
        )
        fleet = Fleet(info, present, listener, results, observer, _expected(info, models))
        return FleetResult(info=info, shares=fleet.measure(shares), absent=tuple(absent))


def _expected(info: FleetInfo, models: Sequence[str]) -> request.Request | None:
    """The request that each machine should make, or None if it uses workloads that are unknown here."""
    with TemporaryDirectory(prefix="accelbench-fleet-") as folder, suppress(UsageError):
        return request.request(with_suites(info.options, info.suites, Path(folder)), models)
    return None


def _fleet_to_resume(fleet_options: FleetOptions, results: Path) -> FleetInfo:
    if fixed_options := fleet_options.measure.changed_kept_fields:
        message = f"A fleet is resumed with its original options: {fixed_options[0]} cannot be changed."
        raise UsageError(message, "Leave that option out.")
    info = read_fleet(results, fleet_options.resume or "")
    models = fleet_options.measure.model or info.options.model
    if not fleet_options.measure.model:
        user_models.check_known(f"The fleet {info.id}", models)
    digests = user_models.file_digests(models, info.options.input or "")
    if any(machine.has.files != digests for machine in info.machines):
        files = ", ".join(dict.fromkeys(name for machine in info.machines for name in machine.has.files))
        message = f"The fleet {info.id} was started with another version of {files or 'your models'}."
        raise UsageError(message, "Restore those files, or start another fleet.")
    return info


def _check(
    machines: Sequence[FleetMachine],
    absent: Sequence[Absent],
    fleet_options: FleetOptions,
    observer: FleetObserver,
) -> None:
    """Report differences between machines. Raises NothingToMeasure, UsageError."""
    for machine in absent:
        observer.note(f"{machine.name} does not measure: {machine.reason}")
    if not machines:
        raise NothingToMeasure("No machine of the cluster answered.", "Run ray status to see the machines.")
    digests = user_models.file_digests(fleet_options.measure.model, fleet_options.measure.input or "")
    if differences := file_differences(machines, digests):
        raise UsageError(
            f"Machines would measure different code: {'; '.join(differences)}.",
            f"Files must be in the folder of the command: copy {paths.working_folder()} to the same path "
            "on each machine, or share that folder.",
        )
    for text in (*version_differences(machines), *hardware_differences(machines)):
        observer.note(f"machines differ in {text}")
    if versions := sorted({machine.has.version for machine in machines} - {__version__}):
        message = f"accelbench is {__version__} here, and {', '.join(versions)} on some machine."
        if not fleet_options.allow_different:
            raise UsageError(message, "Install one version, or use --allow-different.")
        observer.note(message)


def _new_fleet(fleet_options: FleetOptions, machines: Sequence[FleetMachine], results: Path) -> FleetInfo:
    selectors.follow_stored_ids(results)
    options = fleet_options.measure
    if reserved_tags := sorted({FLEET, MACHINE, INSTEAD_OF} & {*options.tags}):
        raise UsageError(f"A fleet sets the tag {reserved_tags[0]!r} itself.", "Choose another name.")
    paths = [suite_path(name) for name in options.suites or (() if options.model else ("quick",))]
    measuring = machines if fleet_options.each is MachineChoice.NODE else one_of_each_kind(machines)
    return FleetInfo(
        id=new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        options=dataclasses.replace(options, suites=()),
        suites=tuple((path.stem, suite_text(path)) for path in paths),
        machines=tuple(machines),
        measuring=tuple(machine.name for machine in measuring),
    )
