"""What is verified before anything is timed, and against which reference.

Training is verified at its small size, in its own dtype and mode. Inference of networks, and layers as deep
as a recurrent one, are also verified at the small size in float32 where they compute in less, since rounding
hides mistakes there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchbench.backends.base import Backend
from benchbench.errors import Unsupported
from benchbench.launch import catalogue
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, Message
from benchbench.model.case import Cache, Case, Dtype, Phase
from benchbench.model.measurement import Failure
from benchbench.model.placement import suffix
from benchbench.model.status import Status
from benchbench.registry import load_class
from benchbench.running.answers import decoded

Announce = Callable[[str], None]
# What is computed → its float64 reference, as WorkerPool.reference gives it, or why there is none.
References = dict[str, Message | Failure]
Verified = dict[str, float | Failure | None]  # name of a check → relative error, or what is wrong


def references(
    pool: WorkerPool, cases: Sequence[Case], announce: Announce, *, small: bool = False
) -> References:
    """Name of what is computed (`computed`) → its float64 reference, or why there is none.

    One serves all backends. `small`: at the small size, with tolerances for float32.
    """
    made: References = {}
    for case in cases:
        name = computed(case)
        if name in made or not _computes(case):
            continue
        announce(f"float64 reference of {name}{' at a small size' if small else ''}")
        try:
            made[name] = pool.reference(case, small=small, replicas=replicas(case))
        except Unsupported as reason:
            made[name] = Failure(status=Status.UNSUPPORTED, message=str(reason))
        except RuntimeError as error:
            made[name] = Failure(status=Status.FAILED, message=str(error))
    return made


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
    return _backend(case).computes(catalogue.workload_named(case.workload).frameworks())


def _backend(case: Case) -> type[Backend]:
    return load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]


def is_hidden(case: Case) -> bool:
    """Whether rounding may hide a mistake in the case; training is verified in float32 as well, anyway."""
    if case.phase is Phase.TRAIN or not case.computes_in.is_narrow or not _computes(case):
        return False
    return catalogue.workload_named(case.workload).draws_tolerated > 0


def check_name(case: Case) -> str:
    """The name of the case's verification: its id, or one name for all that are verified alike in float32."""
    if not is_hidden(case):
        return case.id
    return f"in float32: {dataclasses.replace(case, dtype=Dtype.FLOAT32, mode='', cache=Cache.HOT).id}"


def verified(
    pool: WorkerPool,
    training: Sequence[Case],
    hidden: Sequence[Case],
    known: tuple[References, References],
    meanwhile: Callable[[], None],
) -> Verified:
    """Name of a verification (`check_name`) → its relative error, or what is wrong.

    `known`: the references of training, and those in float32. What a framework does not support in float32 is
    left to the measurement. `meanwhile`: what this process does while workers verify.
    """
    jobs = [*_jobs(training, known[0], in_float32=False), *_jobs(hidden, known[1], in_float32=True)]
    answers = pool.ask_together(jobs, meanwhile)
    results: Verified = {}
    for case, job in jobs:
        result = _error_in(answers[case.id])
        if not job["in_float32"] or not _is_unsupported(result):
            results[check_name(case)] = result
    return results


def _jobs(
    cases: Sequence[Case], known: References, *, in_float32: bool
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """A job for each case, but for those whose reference cannot be computed."""
    for case in cases:
        if not isinstance(reference := known.get(computed(case)), Failure):
            yield case, {"kind": "verify", "reference": reference, "in_float32": in_float32}


def _error_in(answer: Answer) -> float | Failure | None:
    if answer.reply is not None and "verified" in answer.reply:
        error: float | None = answer.reply["verified"]
        return error
    failure = decoded(answer, {})
    assert isinstance(failure, Failure)
    return failure


def _is_unsupported(result: float | Failure | None) -> bool:
    return isinstance(result, Failure) and result.status is Status.UNSUPPORTED
