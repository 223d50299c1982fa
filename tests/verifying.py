"""Verification of real backends, with workers that stay and references that are computed once."""

import fcntl
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.environments.interpreters import targets
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Message
from benchbench.launch.workers import Job
from benchbench.model.case import Case
from benchbench.model.device import Probe, Target
from benchbench.model.measurement import Failure
from benchbench.model.run import Settings
from benchbench.running.verification import References, computation_name, reference_jobs, verify_job

TOGETHER = (("onnxruntime", "openvino"),)
Errors = dict[str, float | Failure | None]


class SharedReferences:
    """References by name, each computed once per pytest session; `folder` belongs to the session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, name: str, compute: Callable[[], Message]) -> Any:
        """The reference `name`; `compute()` if no test of this session has computed it."""
        path = self._folder / f"{sha256(name.encode()).hexdigest()}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(compute()))
        return json.loads(path.read_bytes())


class OpenPools:
    """Worker pools by backend, kept open because importing a framework takes longer than most cases.

    Backends that load each other's models share a pool. The stack closes the pools.
    """

    def __init__(self, stack: ExitStack, settings: Settings) -> None:
        self._stack = stack
        self._settings = settings
        self._pools: dict[str, tuple[WorkerPool, Probe]] = {}

    def of(self, target: str) -> tuple[WorkerPool, Probe]:
        """The pool of a target and its probe."""
        if target not in self._pools:
            group = next((group for group in TOGETHER if target in group), (target,))
            pool = self._open(targets(group, {}))
            self._pools |= {probe.target.name: (pool, probe) for probe in pool.probe()}
        return self._pools[target]

    @cached_property
    def without_framework(self) -> WorkerPool:
        return self._open([])

    def _open(self, targets_to_open: list[Target]) -> WorkerPool:
        return self._stack.enter_context(WorkerPool(targets_to_open, self._settings, sys.executable))


class Verifier:
    """Compare the results of real backends with float64 references."""

    def __init__(self, stack: ExitStack, references: SharedReferences, settings: Settings) -> None:
        self._pools = OpenPools(stack, settings)
        self._references = references

    def errors_of(self, cases: Sequence[Case]) -> Errors:
        """Case id → relative error of its first steps, or its failure; all cases must have one backend."""
        assert len({case.target for case in cases}) == 1
        pool, probe = self.pool_of(cases[0])
        if probe.status != "ready":
            pytest.skip(probe.reason)
        references = {computation_name(case): self.reference(case) for case in cases}
        errors: Errors = {}
        export_for(pool, cases)
        pool.run_jobs(
            [verify_job(case, references[computation_name(case)], errors) for case in cases], quietly
        )
        return errors

    def pool_of(self, case: Case) -> tuple[WorkerPool, Probe]:
        return self._pools.of(case.target)

    def reference(self, case: Case) -> Any:
        """The reference of the case, on one device or divided over several."""

        def compute() -> Message:
            references: References = {}
            self._pools.without_framework.run_jobs(list(reference_jobs([case], references)), quietly)
            reference = references[computation_name(case)]
            assert not isinstance(reference, Failure), reference.message
            return reference

        return self._references.of(computation_name(case), compute)


def export_for(pool: WorkerPool, cases: Sequence[Case]) -> None:
    """Export the models that several backends load; a failure reappears in the verification."""
    shared = [case for case in cases if any(case.backend in group for group in TOGETHER)]
    jobs = [Job(message={"kind": "export"}, done=lambda answer: (), case=case, label="") for case in shared]
    pool.run_jobs(jobs, quietly)


def quietly(label: str) -> None:
    """Print nothing."""


def failures(errors: Errors) -> Errors:
    """The failures, and the cases without a result."""
    return {name: error for name, error in errors.items() if not isinstance(error, float)}


def in_tf32(x: Any) -> Any:
    """The numbers as tensor cores read them: the low 13 bits of float32 are dropped."""
    return (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def sequential_product(x: Any, weight: Any) -> Any:
    """The float32 product whose sums are added term by term, as in a plain loop."""
    total: Any = np.zeros((len(x), weight.shape[1]), np.float32)
    for column, row in zip(x.T, weight, strict=True):
        total += column[:, None] * row
    return total
