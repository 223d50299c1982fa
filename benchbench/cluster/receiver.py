"""Store the records of a machine's share as they arrive, as a run in the local results folder.

Every message is checked against the job: plan, policy and tags must be those of the job, and each record must
belong to a planned case and a possible round. Anything else is an error of that machine. The receiver keeps
neither records nor open files, since a fleet may have a thousand machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchbench.analyse.rows import case_key
from benchbench.cluster.machines import Share, ShareState, unfinished_cases
from benchbench.cluster.messages import (
    LineKind,
    NodeLine,
)
from benchbench.errors import UnreadableInput
from benchbench.model.case import Case, Status
from benchbench.model.measurement import Failure
from benchbench.model.run import Policy, Record, RunInfo
from benchbench.redaction import Redaction, process_redaction
from benchbench.store import codec, runs
from benchbench.store.disk import COMMIT, new_id
from benchbench.store.runs import RunWriter

MAX_ID_LENGTH = 100  # characters of an id in a message
NO_RUN = "it reported the end, but sent no run"
UNFINISHED = "it reported the end, but {count} of its cases are unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Required properties of a share's run; None: not known here.

    `works`: (suite, workload) of each case that may be planned.
    """

    tags: Mapping[str, str]
    policy: Policy | None = None
    seed: int | None = None
    works: Collection[tuple[str, str]] | None = None

    def head(self, info: RunInfo, share: Share) -> RunInfo:
        """Check the head that a machine sent, and return the head of the new run. Raises UnreadableInput."""
        if info.partner or info.resumed:
            raise UnreadableInput("the head of its run is not that of a new run")
        self._check_plan(info, share)
        if self.policy and _rounds(info.policy) != _rounds(self.policy):
            raise UnreadableInput("it planned other rounds than requested")
        if self.seed not in (None, info.seed):
            raise UnreadableInput("its seed is not the requested one")
        if info.tags.keys() - {COMMIT} != self.tags.keys() - {COMMIT}:
            raise UnreadableInput("the tags of its run are not the requested ones")
        return replace(info, id=new_id(), tags={**info.tags, **self.tags})

    def _check_plan(self, info: RunInfo, share: Share) -> None:
        keys = [case_key(case) for case in info.plan]
        if not keys or len({*keys}) < len(keys):
            raise UnreadableInput("it planned no case, or one twice")
        if share.cases:
            all_cases = [*info.plan, *(left_out.case for left_out in info.left_out)]
            if sorted(all_cases, key=case_key) != sorted(share.cases, key=case_key):
                raise UnreadableInput("it planned other cases than requested")
        elif self.works is not None:
            for case in info.plan:
                if (case.suite, case.workload) not in self.works:
                    raise UnreadableInput(
                        f"it planned {case.id[:MAX_ID_LENGTH]}, which is in none of the suites"
                    )


def resumed_head(info: RunInfo, before: RunInfo) -> RunInfo:
    """Check the head of a resumed run: the same head with one more part. Raises UnreadableInput."""
    *earlier, latest = info.resumed or (None,)
    fixed_fields = ("id", "plan", "policy", "seed", "settings", "partner")
    differing = [name for name in fixed_fields if getattr(info, name) != getattr(before, name)]
    if latest is None or tuple(earlier) != before.resumed or differing:
        names = ", ".join(differing) or "its parts"
        raise UnreadableInput(f"the head of its run differs from that of the run to resume: {names}")
    return replace(before, resumed=(*before.resumed, latest))


def _rounds(policy: Policy) -> tuple[object, ...]:
    """The fields of a policy that decide when a run is complete."""
    return policy.rounds, policy.most_rounds, policy.budget_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProgress:
    """Progress of a machine's share. `cases` and `finished` are numbers of cases."""

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
    begun_again_on: str = ""  # the machine that took over the rest


class Receiver:
    """Stores the records of one share, and tracks its progress."""

    def __init__(
        self, share: Share, results: Path, assignment: Assignment, redact: Redaction | None = None
    ) -> None:
        """Create a receiver. `redact`: by default the redaction of all stored texts."""
        self.share = share
        self._results = results
        self._assignment = assignment
        self._redact = redact or process_redaction()
        self._info: RunInfo | None = None
        self._has_head = False
        self.progress = ShareProgress(
            machine=share.machine,
            kind=share.kind,
            state=ShareState.WAITING,
            instead_of=share.instead_of,
            cases=len(share.cases),
        )
        self._planned: dict[tuple[str, str], Case] = {}
        self._recorded: set[tuple[str, str, int]] = set()
        self._latest = -1  # latest round with a record
        self._over: set[tuple[str, str]] = set()  # cases without further records
        self._finished: set[tuple[str, str]] = set()
        self._failed: set[tuple[str, str]] = set()
        if share.interrupted:
            self._set_head(share.interrupted)

    @property
    def info(self) -> RunInfo | None:
        """Head of the run, once the machine has sent it."""
        return self._info

    @property
    def has_folder(self) -> bool:
        """False if someone removed the run's folder."""
        return self._info is None or os.path.isdir(self._folder)

    def recall(self) -> None:
        """Count the records that an interrupted run already has. Raises UnreadableInput."""
        for record in self._stored() if self.share.interrupted else ():
            self._count(record)

    def starting(self) -> None:
        """Note that the job was sent to the machine. Raises CannotWrite."""
        self._note(state=ShareState.STARTING)
        if self.share.interrupted:
            with closing(self._writer()) as writer:
                writer.drop_torn()

    def take(self, line: NodeLine) -> Record | None:
        """Store the content of a line; return the record if it is one. Raises UnreadableInput,
        CannotWrite.
        """
        if line.kind is LineKind.HEAD:
            self._begin(codec.decode_head(line.content))
        elif line.kind is LineKind.RECORD:
            record = codec.decode(line.content, checksums=True)
            self._check(record)
            with closing(self._writer()) as writer:
                record = writer.append(record)
            self._count(record)
            return record
        elif line.kind is LineKind.STAGE:
            self._note(stage=line.text)
        elif line.kind is LineKind.ERROR:
            self.fail(line.text)
        return None

    def fail(self, reason: str) -> None:
        """Note why the machine cannot continue. Its run can be resumed."""
        self._note(state=ShareState.FAILED, reason=self.progress.reason or reason)

    def end(self) -> None:
        """Note the end of the job: the share is done if every case is finished. Otherwise its run can be
        resumed.

        Raises CannotWrite, UnreadableInput.
        """
        if self.progress.state is ShareState.FAILED:
            return
        if self._info is None or not self._has_head:
            self.fail(NO_RUN)
        elif unfinished := unfinished_cases(self._info, self._stored()):
            self.fail(UNFINISHED.format(count=len(unfinished)))
        else:
            self._note(state=ShareState.DONE)
            with closing(self._writer()) as writer:
                writer.end()

    def lose(self, reason: str) -> list[Case]:
        """Store the unfinished cases as lost, since the machine is gone, and return them.

        Without unfinished cases, the share is done. Raises CannotWrite, UnreadableInput.
        """
        self._note(state=ShareState.LOST, reason=reason)
        if self._info is None:
            return []
        with closing(self._writer()) as writer:
            writer.drop_torn()
            unfinished = unfinished_cases(self._info, self._stored())
            if not unfinished:
                self._note(state=ShareState.DONE)
            for case, number in unfinished:
                record = self._lost(case, number, reason)
                writer.append(record)
                self._count(record)
            writer.end()
        return [case for case, _ in unfinished]

    def reassigned_to(self, machine: str) -> None:
        """Note which machine takes over the unfinished cases."""
        self._note(begun_again_on=machine)

    def _note(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)

    def _begin(self, head: RunInfo) -> None:
        if self._has_head:
            raise UnreadableInput("it sent the head of a second run")
        if self._info is None:
            info = self._assignment.head(head, self.share)
            runs.create_run(self._results, info).close()
        else:
            info = resumed_head(head, self._info)
            with closing(self._writer()):  # locks the run
                runs.rewrite_head(self._folder, info)
        self._set_head(info)
        self._has_head = True
        self._note(state=ShareState.MEASURING)

    def _set_head(self, info: RunInfo) -> None:
        self._info = replace(info, probes=(), left_out=())  # large, and already stored
        self._planned = {case_key(case): case for case in info.plan}
        self._note(run=info.id, cases=len(info.plan))

    @property
    def _folder(self) -> Path:
        assert self._info is not None
        return self._results / runs.RUNS / self._info.id

    def _writer(self) -> RunWriter:
        """Open a writer of the run, to be closed soon since it is an open file. Raises CannotWrite."""
        return RunWriter(self._folder, redact=self._redact)

    def _stored(self) -> tuple[Record, ...]:
        """Read the stored records. Raises UnreadableInput."""
        return runs.read_run(self._folder).records

    def _check(self, record: Record) -> None:
        """Raise UnreadableInput unless this is a possible next record of a planned case."""
        if self._info is None or not self._has_head:
            raise UnreadableInput("it sent a record before the head of its run")
        key, name = case_key(record.case), record.case.id[:MAX_ID_LENGTH]
        if self._planned.get(key) != record.case:
            raise UnreadableInput(f"it sent a record of {name}, which it did not plan")
        if (*key, record.round) in self._recorded:
            raise UnreadableInput(f"it sent round {record.round + 1} of {name} twice")
        last = min(self._latest + 1, _most_rounds(self._info.policy) - 1)
        if key in self._over or not 0 <= record.round <= last:
            raise UnreadableInput(f"it sent round {record.round + 1} of {name}, which is not the next round")
        if record.part != len(self._info.resumed) or record.order < 0:
            raise UnreadableInput(
                f"it sent a record of part {record.part} of its run, which is not the current part"
            )

    def _count(self, record: Record) -> None:
        status, key = record.outcome.status, case_key(record.case)
        assert self._info is not None
        self._recorded.add((*key, record.round))
        self._latest = max(self._latest, record.round)
        last = record.round + 1 >= self._info.policy.rounds
        if isinstance(record.outcome, Failure):
            self._over.add(key)
        if status != Status.LOST and (last or isinstance(record.outcome, Failure)):
            self._finished.add(key)
        if isinstance(record.outcome, Failure) and status not in (Status.LOST, Status.UNSUPPORTED):
            self._failed.add(key)
        self._note(finished=len(self._finished), failed=len(self._failed))

    def _lost(self, case: Case, number: int, reason: str) -> Record:
        assert self._info is not None
        return Record(
            case=case,
            round=number,
            order=len(self._recorded),
            started=time.time(),
            outcome=Failure(status=Status.LOST, message=f"its machine was lost: {reason}"),
            framework_version=None,
            device_model="",
            isolation="none",
            part=len(self._info.resumed),
        )


def _most_rounds(policy: Policy) -> int:
    """Maximum rounds of a case: unlimited under a budget."""
    return 2**31 if policy.budget_s is not None else policy.most_rounds or policy.rounds
