"""What is verified before anything is timed, and against what.

Training at its small size, in its own dtype and mode. A network's other steps, and layers as deep as a
recurrent one, where they compute in less than float32: there rounding hides mistakes, so they are verified at
the small size in float32, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchbench.backends.base import Backend
from benchbench.errors import Unsupported
from benchbench.launch import catalogue
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer
from benchbench.model.case import Cache, Case, Dtype, Phase
from benchbench.model.measurement import Failure
from benchbench.model.placement import suffix
from benchbench.model.status import Status
from benchbench.registry import load_class
from benchbench.running.answers import decoded

Announce = Callable[[str], None]
References = dict[
    str, list[float] | Failure
]  # what is computed → its float64 reference, or why there is none
Verified = dict[str, float | Failure | None]  # name of a check → relative error, or what is wrong


def references(
    pool: WorkerPool, cases: Sequence[Case], announce: Announce, *, small: bool = False
) -> References:
    """`computed` → its float64 reference, or why there is none; made once for all backends.

    `small`: of the small size in float32.
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
    """What is, whoever computes it: how it is divided among devices may change what is right."""
    parts = replicas(case)
    return case.work + suffix(case.placement, {}) + (f" in {parts} replicas" if parts > 1 else "")


def replicas(case: Case) -> int:
    """Parts of a batch whose statistics its framework takes apart, unless they are asked to be gathered."""
    apart = _backend(case).statistics_apart and not case.params.get("sync_batch_norm")
    return case.placement.devices if apart and case.placement.strategy.divides_batch else 1


def _computes(case: Case) -> bool:
    """Whether its backend computes the workload, so that there is something to verify."""
    return _backend(case).computes(catalogue.workload_named(case.workload).frameworks())


def _backend(case: Case) -> type[Backend]:
    return load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]


def is_hidden(case: Case) -> bool:
    """Whether rounding may hide a mistake in what it computes, and training's verification is not for it."""
    if case.phase is Phase.TRAIN or not case.computes_in.is_narrow or not _computes(case):
        return False
    return catalogue.workload_named(case.workload).draws_tolerated > 0


def check_name(case: Case) -> str:
    """Of what is verified of the case: itself, or for all its dtypes and modes the same in float32."""
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
    """By name of the check: see `check_name`.

    `known`: references of training, and at the small size in float32. What a framework does not support in
    float32 is left to the measurement.
    """
    jobs = [*_jobs(training, known[0], in_float32=False), *_jobs(hidden, known[1], in_float32=True)]
    answers = pool.ask_together(jobs, meanwhile)
    told: Verified = {}
    for case, job in jobs:
        result = _error_in(answers[case.id])
        if not job["in_float32"] or not _is_unsupported(result):
            told[check_name(case)] = result
    return told


def _jobs(
    cases: Sequence[Case], known: Mapping[str, list[float] | Failure], *, in_float32: bool
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """None where there is no reference because it cannot be computed."""
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
