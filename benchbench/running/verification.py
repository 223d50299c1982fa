"""What is done before anything is timed, side by side: references, verification of networks, exports.

Training is verified at its small size, in its own dtype and mode. Inference of networks, and layers as deep
as a recurrent one, are also verified at the small size in float32 where they compute in less, since rounding
hides mistakes there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from benchbench.backends.base import Backend
from benchbench.errors import UnreadableInput, Unsupported
from benchbench.launch import catalogue
from benchbench.launch.own_models import OwnModel
from benchbench.launch.pool import Job, WorkerPool, decode_reference, reference_message
from benchbench.launch.transport import Answer, Message
from benchbench.model.case import Cache, Case, Dtype, Phase
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.placement import suffix
from benchbench.model.ranks import combined
from benchbench.model.status import Status
from benchbench.registry import load_class
from benchbench.store.codec import outcome_of
from benchbench.workloads.draw import SEED

# What is computed → its float64 reference, the fields of a worker.verify.Reference, or why there is none.
References = dict[str, Message | Failure]
Verified = dict[str, float | Failure | None]  # name of a check → relative error, or what is wrong
Announce = Callable[[str], None]


class Precomputed:
    """References, verifications and exports: what a run's processes start from."""

    def __init__(self, pool: WorkerPool, announce: Announce, seed: int = SEED) -> None:
        """`seed`: of the places at which outputs are compared."""
        self._seed = seed
        self._pool = pool
        self._announce = announce
        self._references: References = {}
        self._verified: Verified = {}
        self._allowed: dict[str, float] = {}  # name of a check → how large its error may be
        self._exported: dict[str, Failure | None] = {}  # id of a case → why its model could not be exported

    def prepare(self, cases: Sequence[Case]) -> None:
        """Compute the references, verifications and exports of the cases, unless they exist already."""
        unverified = {check_name(case): case for case in cases if check_name(case) not in self._verified}
        training = [case for case in unverified.values() if case.phase is Phase.TRAIN]
        hidden = [case for case in unverified.values() if is_hidden(case)]
        inference = [
            case for case in cases if case.phase is not Phase.TRAIN and computed(case) not in self._references
        ]
        verify = partial(verify_job, found=self._verified, allowed=self._allowed)
        jobs = [
            *reference_jobs(training, self._references, verify, seed=self._seed),
            *reference_jobs(hidden, {}, partial(verify, in_float32=True), small=True),
            *reference_jobs(inference, self._references, seed=self._seed),
            *self._export_jobs(case for case in cases if case.id not in self._exported),
        ]
        if jobs:
            self._pool.run_jobs(jobs, self._announce)

    def reference(self, case: Case) -> Message | Failure | None:
        """The float64 reference of what the case computes, or why there is none; None: nothing is."""
        name = computed(case)
        if name not in self._references:
            jobs = list(reference_jobs([case], self._references, seed=self._seed))
            self._pool.run_jobs(jobs, self._announce)
        return self._references.get(name)

    def verified(self, case: Case) -> float | Failure | None:
        """The relative error of the case's verification before, or what is wrong; None: there was none."""
        return self._verified.get(check_name(case))

    def allowed(self, case: Case) -> float | None:
        """How large that error may be, where a worker has said so."""
        return self._allowed.get(check_name(case))

    def export_failure(self, case: Case) -> Failure | None:
        """Why the case's model could not be exported, which is done now if it was not; mostly None."""
        if case.id not in self._exported:
            self._pool.run_jobs(list(self._export_jobs([case])), self._announce)
        return self._exported.get(case.id)

    def _export_jobs(self, cases: Iterable[Case]) -> Iterator[Job]:
        """A job for each model: of backends that load the same one, each exports its share."""
        alike: dict[tuple[str, ...], list[Case]] = {}
        for case in cases:
            if case.mode in _backend(case).exporting_modes:
                alike.setdefault(exported_name(case, self._pool.interpreter(case.target)), []).append(case)
        for number, own in enumerate(alike.values()):
            turn = number % len(own)
            yield self._export_job(own[turn], [*own[:turn], *own[turn + 1 :]])

    def _export_job(self, case: Case, others: Sequence[Case]) -> Job:
        """Of the case's model, which the others load, too; where it fails, the next of them tries."""

        def answered(answer: Answer) -> Iterable[Job]:
            if answer.reply is not None and "outcome" not in answer.reply:
                self._exported.update(dict.fromkeys((each.id for each in (case, *others)), None))
                return ()
            result = decoded(answer, {})
            self._exported[case.id] = result if isinstance(result, Failure) else None
            return [self._export_job(others[0], others[1:])] if others else ()

        label = f"exporting {case.work}"
        return Job(message={"kind": "export"}, done=answered, case=case, label=label)


def exported_name(case: Case, python: str) -> tuple[str, ...]:
    """What cases have in common that load one exported model; `python`: the interpreter of the case."""
    backend = _backend(case)()
    where = python if backend.shared_cache else f"{case.target}:{case.device}"
    what = backend.exported_as(case.computes_in, case.mode)
    return where, case.work, suffix(case.placement, case.environment, case.threads), what


def reference_jobs(
    cases: Iterable[Case],
    found: References,
    then: Callable[[Case, Message], Job] | None = None,
    *,
    small: bool = False,
    seed: int = SEED,
) -> Iterator[Job]:
    """A job for each thing computed (`computed`), for all backends; its reference goes to `found`.

    `then`: the job of a case that needs its reference. `small`: at the small size, with tolerances for
    float32.
    """
    alike: dict[str, list[Case]] = {}
    for case in cases:
        if _computes(case):
            alike.setdefault(computed(case), []).append(case)
    for name, same in alike.items():

        def answered(answer: Answer, name: str = name, same: Sequence[Case] = same) -> Iterator[Job]:
            reference = found[name] = _reference_or_failure(answer)
            if then and not isinstance(reference, Failure):
                for case in same:
                    yield then(case, reference)

        message = reference_message(same[0], small=small, replicas=replicas(same[0]), seed=seed)
        label = f"float64 reference of {name}{' at a small size' if small else ''}"
        # A model is its own reference: a worker computes it that has its framework.
        yield Job(message=message, done=answered, label=label, case=same[0] if is_own(same[0]) else None)


def verify_job(
    case: Case,
    reference: Message,
    found: Verified,
    allowed: dict[str, float] | None = None,
    *,
    in_float32: bool = False,
) -> Job:
    """The job that verifies the case; its relative error, or what is wrong, goes to `found` (`check_name`).

    How large the error may be goes to `allowed`.

    What a framework does not support in float32 is left to the measurement.
    """

    def answered(answer: Answer) -> Iterable[Job]:
        result = error_in(answer)
        unsupported = isinstance(result, Failure) and result.status is Status.UNSUPPORTED
        if not (in_float32 and unsupported):
            found[check_name(case)] = result
        limit = (answer.reply or {}).get("allowed")
        if allowed is not None and type(limit) is float and 0 <= limit < math.inf:
            allowed[check_name(case)] = limit
        return ()

    message = {"kind": "verify", "reference": reference, "in_float32": in_float32}
    return Job(message=message, done=answered, case=case, label="verifying networks at a small size")


def _reference_or_failure(answer: Answer) -> Message | Failure:
    try:
        return decode_reference(answer)
    except Unsupported as reason:
        return Failure(status=Status.UNSUPPORTED, message=str(reason))
    except RuntimeError as error:
        return Failure(status=Status.FAILED, message=str(error))


def computed(case: Case) -> str:
    """The name of what a case computes, whichever backend does: what is right may depend on its division."""
    parts = replicas(case)
    return case.work + suffix(case.placement, {}) + (f" in {parts} replicas" if parts > 1 else "")


def replicas(case: Case) -> int:
    """Into how many parts a batch is divided that each have batch statistics of their own."""
    per_device = _backend(case).statistics_per_device and not case.params.get("sync_batch_norm")
    return case.placement.devices if per_device and case.placement.strategy.divides_batch else 1


def _computes(case: Case) -> bool:
    """Whether its backend computes the workload, so that there is something to verify."""
    return _backend(case).computes(catalogue.kind_of(case.workload).frameworks())


def _backend(case: Case) -> type[Backend]:
    return load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]


def is_hidden(case: Case) -> bool:
    """Whether rounding may hide a mistake in the case; training is verified in float32 as well, anyway."""
    if case.phase is Phase.TRAIN or not case.computes_in.is_narrow or not _computes(case):
        return False
    return catalogue.kind_of(case.workload).draws_tolerated > 0


def check_name(case: Case) -> str:
    """The name of the case's verification: its id, or one name for all that are verified alike in float32."""
    if not is_hidden(case):
        return case.id
    mode = case.mode if is_own(case) else ""
    return f"in float32: {dataclasses.replace(case, dtype=Dtype.FLOAT32, mode=mode, cache=Cache.HOT).id}"


def is_own(case: Case) -> bool:
    """Whether it computes a user's model, whose reference is the model itself."""
    return isinstance(catalogue.kind_of(case.workload), OwnModel)


def error_in(answer: Answer) -> float | Failure | None:
    """The relative error, None for a simulated program, or why there is none."""
    import msgspec

    found = decoded(answer, {})
    if isinstance(found, Failure) and "verified" not in (answer.reply or {}):
        return found
    try:
        error: float | None = msgspec.convert((answer.reply or {}).get("verified", ""), float | None)
        if not 0 <= (error or 0.0) < math.inf:
            raise ValueError("no relative error")
    except ValueError as unread:
        message = f"the worker's answer cannot be read: verified: {unread}"
        return Failure(status=Status.FAILED, message=message)
    return error


def decoded(answer: Answer, stages: dict[str, float]) -> Measurement | Failure:
    """The outcome in an answer; its stage times are added to `stages`."""
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
    """Combine the measurements of all ranks; a stage lasts as long as in the slowest rank.

    `host`, in a reply: the number of the rank's host, where a launcher started it.
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
    """Stage → seconds. Raises ValueError for anything else."""
    import msgspec

    found = msgspec.convert(stages, dict[str, float])
    if not all(0 <= seconds < math.inf for seconds in found.values()):  # NaN fails this too
        raise ValueError("a stage's time is negative or not finite")
    return found
