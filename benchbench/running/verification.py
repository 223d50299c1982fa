"""References, verifications and exports, computed in parallel before anything is timed.

Training is verified at its small size, in the case's dtype and mode. Networks and deep layers, such as
recurrent ones, are also verified at the small size in float32 if the case has a narrower dtype, since its
rounding errors can hide mistakes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from benchbench.backends.base import backend_class
from benchbench.errors import UnreadableInput, Unsupported
from benchbench.launch import catalogue
from benchbench.launch.pool import WorkerPool, decode_reference, reference_message
from benchbench.launch.transport import Answer, Message
from benchbench.launch.user_models import UserModel
from benchbench.launch.workers import Job
from benchbench.model.case import Cache, Case, Dtype, Phase, Status
from benchbench.model.measurement import Failure, Measurement, combined
from benchbench.model.placement import suffix
from benchbench.store.codec import outcome_of
from benchbench.workloads.draw import SEED

# By name of the computation (`computation_name`): fields of a `worker.verify.Reference`, or a failure.
References = dict[str, Message | Failure]
Verified = dict[str, float | Failure | None]  # by `check_name`: relative error, or a failure
Announce = Callable[[str], None]


class Precomputed:
    """The references, verifications and exports of a run."""

    def __init__(self, pool: WorkerPool, announce: Announce, seed: int = SEED) -> None:
        """`seed`: selects the compared elements of outputs."""
        self._seed = seed
        self._pool = pool
        self._announce = announce
        self._references: References = {}
        self._verified: Verified = {}
        self._tolerances: dict[str, float] = {}  # by `check_name`: largest allowed relative error
        self._export_failures: dict[str, Failure | None] = {}  # by case id; None after a successful export

    def prepare(self, cases: Sequence[Case]) -> None:
        """Compute the missing references, verifications and exports of the cases."""
        unverified = {check_name(case): case for case in cases if check_name(case) not in self._verified}
        training = [case for case in unverified.values() if case.phase is Phase.TRAIN]
        hidden = [case for case in unverified.values() if is_hidden(case)]
        inference = [case for case in cases if case.phase is not Phase.TRAIN]
        missing = [case for case in inference if computation_name(case) not in self._references]
        verify = partial(verify_job, errors=self._verified, tolerances=self._tolerances)
        jobs = [
            *reference_jobs(training, self._references, verify, seed=self._seed),
            *reference_jobs(hidden, {}, partial(verify, in_float32=True), small=True),
            *reference_jobs(missing, self._references, seed=self._seed),
            *self._export_jobs(case for case in cases if case.id not in self._export_failures),
        ]
        if jobs:
            self._pool.run_jobs(jobs, self._announce)

    def reference(self, case: Case) -> Message | Failure | None:
        """The case's float64 reference, or why there is none; None for a backend that computes nothing."""
        name = computation_name(case)
        if name not in self._references:
            jobs = list(reference_jobs([case], self._references, seed=self._seed))
            self._pool.run_jobs(jobs, self._announce)
        return self._references.get(name)

    def verified(self, case: Case) -> float | Failure | None:
        """The relative error of the case's earlier verification, or its failure; None if it had none."""
        return self._verified.get(check_name(case))

    def tolerance(self, case: Case) -> float | None:
        """The largest allowed relative error of that verification; None if unknown."""
        return self._tolerances.get(check_name(case))

    def export_failure(self, case: Case) -> Failure | None:
        """Export the case's model unless that is done; return why it failed, or None."""
        if case.id not in self._export_failures:
            self._pool.run_jobs(list(self._export_jobs([case])), self._announce)
        return self._export_failures.get(case.id)

    def _export_jobs(self, cases: Iterable[Case]) -> Iterator[Job]:
        """One job per model. Cases that load the same model export it in turn."""
        groups: dict[tuple[str, ...], list[Case]] = {}
        for case in cases:
            if backend_class(case.backend).exports:
                groups.setdefault(exported_name(case, self._pool.interpreter(case.target)), []).append(case)
        for number, group in enumerate(groups.values()):
            place = number % len(group)
            yield self._export_job(group[place], [*group[:place], *group[place + 1 :]])

    def _export_job(self, case: Case, others: Sequence[Case]) -> Job:
        """Export a case's model, which `others` load too. If it fails, the next of them tries."""

        def handle_answer(answer: Answer) -> Iterable[Job]:
            if answer.reply is not None and "outcome" not in answer.reply:
                self._export_failures.update(dict.fromkeys((user.id for user in (case, *others)), None))
                return ()
            result = decode_outcome(answer, {})
            self._export_failures[case.id] = result if isinstance(result, Failure) else None
            return [self._export_job(others[0], others[1:])] if others else ()

        label = f"exporting {case.work}"
        return Job(message={"kind": "export"}, done=handle_answer, case=case, label=label)


def exported_name(case: Case, python: str) -> tuple[str, ...]:
    """Key of the exported model that a case loads; equal for cases with the same model.

    `python`: the interpreter of the case.
    """
    backend = backend_class(case.backend)()
    form = backend.exported_as(case.computes_in, case.mode)
    return python, case.work, suffix(case.placement, case.environment, case.threads), form


def reference_jobs(
    cases: Iterable[Case],
    references: References,
    then: Callable[[Case, Message], Job] | None = None,
    *,
    small: bool = False,
    seed: int = SEED,
) -> Iterator[Job]:
    """One job per computation, shared by all backends. Stores the results in `references`.

    `then`: creates a further job for each case from its reference. `small`: use the small size, with
    tolerances for float32.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if _computes(case):
            groups.setdefault(computation_name(case), []).append(case)
    for name, group in groups.items():

        def handle_answer(answer: Answer, name: str = name, group: Sequence[Case] = group) -> Iterator[Job]:
            reference = references[name] = _reference_or_failure(answer)
            if then and not isinstance(reference, Failure):
                for case in group:
                    yield then(case, reference)

        message = reference_message(group[0], small=small, replicas=replicas(group[0]), seed=seed)
        label = f"float64 reference of {name}{' at a small size' if small else ''}"
        # A user's model is its own reference, so a worker with its framework computes it. Environments of
        # other backends may lack packages that the model imports.
        by_framework = [case for case in group if case.backend == backend_class(case.backend).framework]
        model_case = (by_framework or group)[0] if is_user_model(group[0]) else None
        yield Job(message=message, done=handle_answer, label=label, case=model_case)


def verify_job(
    case: Case,
    reference: Message,
    errors: Verified,
    tolerances: dict[str, float] | None = None,
    *,
    in_float32: bool = False,
) -> Job:
    """The job that verifies a case.

    It stores, by `check_name`, the relative error or failure in `errors`, and the largest allowed error in
    `tolerances`. A check in float32 that the framework does not support is skipped.
    """

    def handle_answer(answer: Answer) -> Iterable[Job]:
        result = decode_error(answer)
        unsupported = isinstance(result, Failure) and result.status is Status.UNSUPPORTED
        if not (in_float32 and unsupported):
            errors[check_name(case)] = result
        limit = (answer.reply or {}).get("allowed")
        if tolerances is not None and type(limit) is float and 0 <= limit < math.inf:
            tolerances[check_name(case)] = limit
        return ()

    message = {"kind": "verify", "reference": reference, "in_float32": in_float32}
    return Job(message=message, done=handle_answer, case=case, label="verifying networks at a small size")


def _reference_or_failure(answer: Answer) -> Message | Failure:
    try:
        return decode_reference(answer)
    except Unsupported as reason:
        return Failure(status=Status.UNSUPPORTED, message=str(reason))
    except RuntimeError as error:
        return Failure(status=Status.FAILED, message=str(error))


def computation_name(case: Case) -> str:
    """Name of a case's computation, which is the same for all backends that must get the same result."""
    parts = replicas(case)
    return case.work + suffix(case.placement, {}) + (f" in {parts} replicas" if parts > 1 else "")


def replicas(case: Case) -> int:
    """The number of parts of a batch that have separate batch statistics."""
    per_device = backend_class(case.backend).statistics_per_device and not case.params.get("sync_batch_norm")
    return case.placement.devices if per_device and case.placement.strategy.divides_batch else 1


def _computes(case: Case) -> bool:
    """Whether the backend really computes the workload, so that its result can be verified."""
    return backend_class(case.backend).computes(catalogue.workload_named(case.workload).frameworks())


def is_hidden(case: Case) -> bool:
    """Whether rounding may hide a mistake in the case, so that it is also verified in float32."""
    if case.phase is Phase.TRAIN or not case.computes_in.is_narrow or not _computes(case):
        return False
    return catalogue.workload_named(case.workload).draws_tolerated > 0


def check_name(case: Case) -> str:
    """The name of the case's verification: its id, or a name shared with cases that the same check covers."""
    if not is_hidden(case):
        return case.id
    mode = case.mode if is_user_model(case) else ""
    return f"in float32: {dataclasses.replace(case, dtype=Dtype.FLOAT32, mode=mode, cache=Cache.HOT).id}"


def is_user_model(case: Case) -> bool:
    """Whether the case runs a user's model, which is its own reference."""
    return isinstance(catalogue.workload_named(case.workload), UserModel)


def decode_error(answer: Answer) -> float | Failure | None:
    """The relative error in an answer, or the failure; None for a backend that computes nothing."""
    import msgspec

    outcome = decode_outcome(answer, {})
    if isinstance(outcome, Failure) and "verified" not in (answer.reply or {}):
        return outcome
    try:
        error: float | None = msgspec.convert((answer.reply or {}).get("verified", ""), float | None)
        if not 0 <= (error or 0.0) < math.inf:
            raise ValueError("no relative error")
    except ValueError as unread:
        message = f"the worker's answer cannot be read: verified: {unread}"
        return Failure(status=Status.FAILED, message=message)
    return error


def decode_outcome(answer: Answer, stages: dict[str, float]) -> Measurement | Failure:
    """The outcome in an answer. Adds its stage times to `stages`."""
    if answer.reply is None:
        return Failure(status=answer.status, message=answer.message, log=answer.log)
    try:
        if "ranks" in answer.reply:
            return _of_ranks(answer.reply["ranks"], stages)
        stages.update(_seconds(answer.reply["stages_s"]))
        return outcome_of(answer.reply["outcome"])
    except (KeyError, TypeError, ValueError, UnreadableInput) as error:
        return Failure(status=Status.FAILED, message=f"the worker's answer cannot be read: {error}")


def _of_ranks(replies: Sequence[Any], stages: dict[str, float]) -> Measurement:
    """Combine the measurements of all ranks. The slowest rank determines the time of a stage.

    A reply has the number of the rank's `host` if a launcher started the rank.
    """
    ranks = []
    for reply in replies:
        outcome = outcome_of(reply["outcome"])
        if not isinstance(outcome, Measurement):
            raise ValueError("a rank failed, and the others did not")
        ranks.append((int(reply.get("host", 0)), str(reply["device"]), outcome))
        for name, seconds in _seconds(reply["stages_s"]).items():
            stages[name] = max(seconds, stages.get(name, 0.0))
    if not ranks:
        raise ValueError("no ranks")
    return combined(ranks[0][2].cost, ranks)


def _seconds(stages: object) -> dict[str, float]:
    """Check and return the seconds by stage. Raises ValueError."""
    import msgspec

    stages_s = msgspec.convert(stages, dict[str, float])
    if not all(0 <= seconds < math.inf for seconds in stages_s.values()):  # NaN fails this too
        raise ValueError("a stage's time is negative or not finite")
    return stages_s
