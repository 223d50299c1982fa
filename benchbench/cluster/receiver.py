"""Stores what a machine sends of its share, as it comes: a run in the results folder here.

What it says is compared with what it was asked: the id is given here, plan, policy and tags are those of the
job, and each record is a planned case's, of a round that is due. Anything else is a fault of that machine.
Neither records nor descriptors are kept, since a fleet may have a thousand machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.analyse.rows import case_key
from benchbench.cluster.machines import Share, ShareState, unfinished_cases
from benchbench.cluster.messages import (
    LineKind,
    NodeLine,
)
from benchbench.errors import UnreadableInput
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.model.run import Policy, RunInfo
from benchbench.model.status import Status
from benchbench.redaction import Redaction, own_redaction
from benchbench.store import codec, runs
from benchbench.store.naming import COMMIT, new_id
from benchbench.store.runs import RunWriter

LONGEST = 100  # characters of an id that is told
NO_RUN = "it said that it was done, and sent no run"
UNFINISHED = "it said that it was done, and {count} of its cases are not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the run of a share has to be, besides what the share says; what is None is not known here.

    `works`: (suite, workload) of each case that may be planned.
    """

    tags: Mapping[str, str]
    policy: Policy | None = None
    seed: int | None = None
    works: Collection[tuple[str, str]] | None = None

    def head(self, said: RunInfo, share: Share) -> RunInfo:
        """The head of a new run of the share, of what a machine said. Raises UnreadableInput."""
        if said.partner or said.resumed:
            raise UnreadableInput("the head of its run is none of a new run")
        self._check_plan(said, share)
        if self.policy and _rounds(said.policy) != _rounds(self.policy):
            raise UnreadableInput("it planned other rounds than it was asked to measure")
        if self.seed not in (None, said.seed):
            raise UnreadableInput("its seed is another than it was asked to take")
        if said.tags.keys() - {COMMIT} != self.tags.keys() - {COMMIT}:
            raise UnreadableInput("the tags of its run are others than it was asked to set")
        return replace(said, id=new_id(), tags={**said.tags, **self.tags})

    def _check_plan(self, said: RunInfo, share: Share) -> None:
        """Raises UnreadableInput."""
        keys = [case_key(case) for case in said.plan]
        if not keys or len({*keys}) < len(keys):
            raise UnreadableInput("it planned no case, or one twice")
        if share.cases:
            whole = [*said.plan, *(each.case for each in said.left_out)]
            if sorted(whole, key=case_key) != sorted(share.cases, key=case_key):
                raise UnreadableInput("it planned other cases than it was asked to measure")
        elif self.works is not None:
            for case in said.plan:
                if (case.suite, case.workload) not in self.works:
                    raise UnreadableInput(f"it planned {case.id[:LONGEST]}, which is in none of the suites")


def resumed_head(said: RunInfo, before: RunInfo) -> RunInfo:
    """The head of a run that a machine resumes: the same, with one more part. Raises UnreadableInput."""
    *earlier, latest = said.resumed or (None,)
    same = ("id", "plan", "policy", "seed", "settings", "partner")
    differing = [name for name in same if getattr(said, name) != getattr(before, name)]
    if latest is None or tuple(earlier) != before.resumed or differing:
        what = ", ".join(differing) or "its parts"
        raise UnreadableInput(f"the head of its run is another than it was asked to go on with: {what}")
    return replace(before, resumed=(*before.resumed, latest))


def _rounds(policy: Policy) -> tuple[object, ...]:
    """What decides when a run is complete."""
    return policy.rounds, policy.continue_above, policy.budget_s


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

    def __init__(
        self, share: Share, results: Path, assignment: Assignment, redact: Redaction | None = None
    ) -> None:
        """`redact`: by default what every stored text passes."""
        self.share = share
        self._results = results
        self._assignment = assignment
        self._redact = redact or own_redaction()
        self._info: RunInfo | None = None
        self._begun = False
        self._state, self._stage, self._reason, self._again = ShareState.WAITING, "", "", ""
        self._planned: dict[tuple[str, str], Case] = {}
        self._made: set[tuple[str, str, int]] = set()
        self._latest = -1  # round that any case has
        self._over: set[tuple[str, str]] = set()  # cases of which no further record can come
        self._finished: set[tuple[str, str]] = set()
        self._failed: set[tuple[str, str]] = set()
        if share.interrupted:
            self._know(share.interrupted)

    @property
    def info(self) -> RunInfo | None:
        """The head of the run, once the machine has sent it."""
        return self._info

    @property
    def is_there(self) -> bool:
        """Whether the run is still there: somebody may have removed it meanwhile."""
        return self._info is None or os.path.isdir(self._folder)

    def recall(self) -> None:
        """Count the records that an interrupted run already has. Raises UnreadableInput."""
        for record in self._stored() if self.share.interrupted else ():
            self._count(record)

    def starting(self) -> None:
        """Note that the machine was given the job. Raises CannotWrite."""
        self._state = ShareState.STARTING
        if self.share.interrupted:
            with closing(self._writer()) as writer:
                writer.drop_torn()

    def take(self, line: NodeLine) -> Record | None:
        """Store what a line holds; returns a record, if it is one. Raises UnreadableInput, CannotWrite."""
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
            self._stage = line.text
        elif line.kind is LineKind.ERROR:
            self.fail(line.text)
        return None

    def fail(self, reason: str) -> None:
        """Note why the machine cannot continue. Its run stays as it is, to be resumed."""
        self._state, self._reason = ShareState.FAILED, self._reason or reason

    def end(self) -> None:
        """Note that the job ended: the share is done if no case is unfinished. Else its run can be resumed.

        Raises CannotWrite, UnreadableInput.
        """
        if self._state is ShareState.FAILED:
            return
        if self._info is None or not self._begun:
            self.fail(NO_RUN)
        elif left := unfinished_cases(self._info, self._stored()):
            self.fail(UNFINISHED.format(count=len(left)))
        else:
            self._state = ShareState.DONE
            with closing(self._writer()) as writer:
                writer.end()

    def lose(self, reason: str) -> list[Case]:
        """Store unfinished cases as lost, since the machine went away, and return them.

        Without any, the share is done. Raises CannotWrite, UnreadableInput.
        """
        self._state, self._reason = ShareState.LOST, reason
        if self._info is None:
            return []
        with closing(self._writer()) as writer:
            writer.drop_torn()
            left = unfinished_cases(self._info, self._stored())
            if not left:
                self._state = ShareState.DONE
            for case, number in left:
                record = self._lost(case, number, reason)
                writer.append(record)
                self._count(record)
            writer.end()
        return [case for case, _ in left]

    def begun_again(self, machine: str) -> None:
        """Note which machine has taken over what is unfinished."""
        self._again = machine

    @property
    def progress(self) -> ShareProgress:
        """How far the machine has come by now."""
        return ShareProgress(
            machine=self.share.machine,
            kind=self.share.kind,
            state=self._state,
            run=self._info.id if self._info else "",
            instead_of=self.share.instead_of,
            cases=len(self._info.plan if self._info else self.share.cases),
            finished=len(self._finished),
            failed=len(self._failed),
            stage=self._stage,
            reason=self._reason,
            begun_again_on=self._again,
        )

    def _begin(self, said: RunInfo) -> None:
        if self._begun:
            raise UnreadableInput("it sent the head of a second run")
        if self._info is None:
            info = self._assignment.head(said, self.share)
            runs.create_run(self._results, info).close()
        else:
            info = resumed_head(said, self._info)
            with closing(self._writer()):  # so that nobody else adds to it
                runs.rewrite_head(self._folder, info)
        self._know(info)
        self._begun, self._state = True, ShareState.MEASURING

    def _know(self, info: RunInfo) -> None:
        self._info = replace(info, probes=(), left_out=())  # which need much memory, and are stored
        self._planned = {case_key(case): case for case in info.plan}

    @property
    def _folder(self) -> Path:
        assert self._info is not None
        return self._results / runs.RUNS / self._info.id

    def _writer(self) -> RunWriter:
        """A writer of the run; close it at once, since it keeps the file open. Raises CannotWrite."""
        return RunWriter(self._folder, redact=self._redact)

    def _stored(self) -> tuple[Record, ...]:
        """The records that are stored so far. Raises UnreadableInput."""
        return runs.read_run(self._folder).records

    def _check(self, record: Record) -> None:
        """Raises UnreadableInput for what is not the next record of a planned case."""
        if self._info is None or not self._begun:
            raise UnreadableInput("it sent a record before the head of its run")
        key, name = case_key(record.case), record.case.id[:LONGEST]
        if self._planned.get(key) != record.case:
            raise UnreadableInput(f"it sent a record of {name}, which it did not plan")
        if (*key, record.round) in self._made:
            raise UnreadableInput(f"it sent round {record.round + 1} of {name} twice")
        last = min(self._latest + 1, _most_rounds(self._info.policy) - 1)
        if key in self._over or not 0 <= record.round <= last:
            raise UnreadableInput(f"it sent round {record.round + 1} of {name}, which is not due")
        if record.part != len(self._info.resumed) or record.order < 0:
            raise UnreadableInput(f"it sent a record of part {record.part} of its run, which it is not at")

    def _count(self, record: Record) -> None:
        status, key = record.outcome.status, case_key(record.case)
        assert self._info is not None
        self._made.add((*key, record.round))
        self._latest = max(self._latest, record.round)
        last = record.round + 1 >= self._info.policy.rounds
        if isinstance(record.outcome, Failure):
            self._over.add(key)
        if status != Status.LOST and (last or isinstance(record.outcome, Failure)):
            self._finished.add(key)
        if isinstance(record.outcome, Failure) and status not in (Status.LOST, Status.UNSUPPORTED):
            self._failed.add(key)

    def _lost(self, case: Case, number: int, reason: str) -> Record:
        assert self._info is not None
        return Record(
            case=case,
            round=number,
            order=len(self._made),
            started=time.time(),
            outcome=Failure(status=Status.LOST, message=f"its machine was lost: {reason}"),
            framework_version=None,
            device_model="",
            isolation="none",
            part=len(self._info.resumed),
        )


def _most_rounds(policy: Policy) -> int:
    """The most rounds a case may get: twice as many if it is noisy, any number under a budget."""
    if policy.budget_s is not None:
        return 2**31
    return policy.rounds if policy.continue_above is None else 2 * policy.rounds
