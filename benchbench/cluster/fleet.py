"""Measures a suite on every machine of a cluster; what a lost machine leaves is given to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.cluster.interface import Ended, Node
from benchbench.cluster.listener import Listener
from benchbench.cluster.machines import Absent
from benchbench.cluster.messages import UNREADABLE, LineKind, NodeJob, NodeLine
from benchbench.cluster.receiver import Receiver, ShareProgress
from benchbench.cluster.shares import Share, ShareState, begun_again, sibling
from benchbench.cluster.stored import FleetInfo
from benchbench.errors import UnreadableInput
from benchbench.model.record import Record
from benchbench.store import runs
from benchbench.store.naming import FLEET, INSTEAD_OF, MACHINE

GONE = "it is no longer in the cluster"
ALONE = "{reason}; no other machine of its type is left"


class FleetObserver:
    """Ignores everything: a subclass overrides what it wants to know."""

    def note(self, text: str) -> None:
        """A sentence that is worth keeping."""

    def changed(self, shares: Sequence[ShareProgress]) -> None:
        """How far all machines have come; called often."""

    def record(self, machine: str, record: Record) -> None:
        """A machine measured a case once more, and it is stored."""


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
    ) -> None:
        """`nodes`: those of the machines of `info` that are there now."""
        self._info = info
        self._nodes = {node.name: node for node in nodes}
        self._kinds = {each.name: each.kind for each in info.machines}
        self._listener = listener
        self._results = results
        self._observer = observer
        self._receivers: list[Receiver] = []
        self._waiting: list[Receiver] = []
        self._busy: dict[int, Receiver] = {}

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
            for each in self._receivers:
                each.close()
        return self._progress()

    def _take_on(self, share: Share) -> None:
        """Queue a share for its machine; where that is gone, what is left of the share goes to another."""
        receiver = Receiver(share, self._results)
        self._receivers.append(receiver)
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
                receiver.starting()
                node = self._nodes[receiver.share.machine]
                self._busy[self._listener.start(node, self._job(receiver.share))] = receiver

    def _heed(self, task: int, said: NodeLine | Ended) -> None:
        receiver = self._busy[task]
        if isinstance(said, Ended):
            del self._busy[task]
            self._over(receiver, said.lost)
            return
        machine = receiver.share.machine
        try:
            if record := receiver.take(said):
                self._observer.record(machine, record)
            elif said.kind is LineKind.NOTE:
                self._observer.note(f"{machine}: {said.text}")
        except UnreadableInput as error:
            receiver.fail(UNREADABLE.format(error=error))

    def _over(self, receiver: Receiver, lost: str) -> None:
        if not lost:
            receiver.end()
            return
        gone = self._nodes.pop(receiver.share.machine)
        self._lose(receiver, lost)
        for each in [other for other in self._waiting if other.share.machine == gone.name]:
            self._waiting.remove(each)
            self._lose(each, lost)

    def _lose(self, receiver: Receiver, reason: str) -> None:
        """Store what is unfinished as lost, and have a machine of the same kind begin it again."""
        share = receiver.share
        there = [each for each in self._info.machines if each.name in self._nodes]
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

    def _job(self, share: Share) -> NodeJob:
        tags = {**self._info.options.tags, FLEET: self._info.id, MACHINE: share.machine}
        if share.instead_of:
            tags[INSTEAD_OF] = share.instead_of
        options = replace(self._info.options, tags=tags)
        if share.interrupted:
            return self._resuming(share.interrupted.info.id)
        if share.lost:
            again, seed = share.lost, share.lost.seed
            return NodeJob(kind="again", options=options, cases=share.cases, policy=again.policy, seed=seed)
        return NodeJob(kind="measure", options=options, suites=self._info.suites)

    def _resuming(self, name: str) -> NodeJob:
        folder, options = self._results / runs.RUNS / name, self._info.options
        return NodeJob(
            kind="resume",
            options=type(options)(pythons=options.pythons, command=options.command, wait_s=options.wait_s),
            run=name,
            head=(folder / runs.HEAD).read_text(),
            records=(folder / runs.RECORDS).read_text(),
        )
