"""Stores what a machine sends of its share, as it comes: a run in the results folder here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchbench.analyse.rows import case_key
from benchbench.cluster.messages import LineKind, NodeLine
from benchbench.cluster.shares import Share, ShareState, unfinished_cases
from benchbench.errors import UnreadableInput
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.store import codec, runs
from benchbench.store.runs import RunWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProgress:
    """How far a machine has come with its share. `cases` and `finished` are counts of cases."""

    machine: str
    kind: str
    state: ShareState
    run: str = ""
    instead_of: str = ""
    cases: int = 0
    finished: int = 0
    failed: int = 0
    stage: str = ""
    reason: str = ""  # why it failed or was lost
    begun_again_on: str = ""  # the machine that has what it left


class Receiver:
    """Stores the records of one share."""

    def __init__(self, share: Share, results: Path) -> None:
        self.share = share
        self._results = results
        self._writer: RunWriter | None = None
        self._info: RunInfo | None = None
        self._state, self._stage, self._reason, self._again = ShareState.WAITING, "", "", ""
        self._records: list[Record] = []
        self._finished: set[tuple[str, str]] = set()
        self._failed: set[tuple[str, str]] = set()
        if share.interrupted:
            self._info = share.interrupted.info
            for record in share.interrupted.records:
                self._count(record)

    @property
    def info(self) -> RunInfo | None:
        """The head of its run, once there is one."""
        return self._info

    def starting(self) -> None:
        """Its machine has been given the job."""
        self._state = ShareState.STARTING
        if self.share.interrupted:
            self._reopen(self.share.interrupted.info)

    def take(self, line: NodeLine) -> Record | None:
        """Store what a line holds; returns a record, if it is one. Raises UnreadableInput, CannotWrite."""
        if line.kind is LineKind.HEAD:
            self._begin(codec.decode_head(line.content))
        elif line.kind is LineKind.RECORD:
            return self._store(codec.decode(line.content, checksums=True))
        elif line.kind is LineKind.STAGE:
            self._stage = line.text
        elif line.kind is LineKind.ERROR:
            self.fail(line.text)
        return None

    def fail(self, reason: str) -> None:
        """Its machine cannot go on, or cannot be understood. Its run stays as it is, to be resumed."""
        self._state, self._reason = ShareState.FAILED, self._reason or reason

    def end(self) -> None:
        """Its machine has finished the share, or said why it cannot: then the run can be resumed."""
        if self._state is not ShareState.FAILED:
            self._state = ShareState.DONE
            if self._writer:
                self._writer.end()
        self.close()

    def lose(self, reason: str) -> list[Case]:
        """Its machine went away: what is unfinished, which is stored as lost. Raises CannotWrite.

        Where nothing is, it had done all of its share.
        """
        self._state, self._reason = ShareState.LOST, reason
        if self._info is None:
            return []
        self._reopen(self._info)
        left = unfinished_cases(self._info, self._records)
        if not left:
            self._state = ShareState.DONE
        for case, number in left:
            self._store(self._lost(case, number, reason))
        assert self._writer is not None
        self._writer.end()
        self.close()
        return [case for case, _ in left]

    def begun_again(self, machine: str) -> None:
        """Note which machine has taken over what is unfinished."""
        self._again = machine

    def close(self) -> None:
        """Nothing more comes. What is stored stays."""
        if self._writer:
            self._writer.close()
        self._writer = None

    @property
    def progress(self) -> ShareProgress:
        """As it is now."""
        plan: Sequence[Case] = self._info.plan if self._info else self.share.cases
        return ShareProgress(
            machine=self.share.machine,
            kind=self.share.kind,
            state=self._state,
            run=self._info.id if self._info else "",
            instead_of=self.share.instead_of,
            cases=len(plan),
            finished=len(self._finished),
            failed=len(self._failed),
            stage=self._stage,
            reason=self._reason,
            begun_again_on=self._again,
        )

    def _begin(self, info: RunInfo) -> None:
        self._state, self._info = ShareState.MEASURING, info
        if self._writer is None:
            self._writer = runs.create_run(self._results, info)
        else:
            runs.rewrite_head(self._writer.folder, info)

    def _reopen(self, info: RunInfo) -> None:
        if self._writer is None:
            self._writer = RunWriter(self._results / runs.RUNS / info.id)
            self._writer.drop_torn()

    def _store(self, record: Record) -> Record:
        if self._writer is None or self._info is None:
            raise UnreadableInput("it sent a record before the head of its run")
        record = self._writer.append(record)
        self._count(record)
        return record

    def _count(self, record: Record) -> None:
        self._records.append(record)
        status, key = record.outcome.status, case_key(record.case)
        assert self._info is not None
        last = record.round + 1 >= self._info.policy.rounds
        if status != Status.LOST and (last or isinstance(record.outcome, Failure)):
            self._finished.add(key)
        if isinstance(record.outcome, Failure) and status not in (Status.LOST, Status.UNSUPPORTED):
            self._failed.add(key)

    def _lost(self, case: Case, number: int, reason: str) -> Record:
        assert self._info is not None
        return Record(
            case=case,
            round=number,
            order=len(self._records),
            started=time.time(),
            outcome=Failure(status=Status.LOST, message=f"its machine was lost: {reason}"),
            framework_version=None,
            device_model="",
            isolation="none",
            part=len(self._info.resumed),
        )
