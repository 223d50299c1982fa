"""Real backends verified in tests: workers that stay, and references that are computed once."""

import fcntl
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.environments.targets import targets
from benchbench.launch.pool import Job, WorkerPool
from benchbench.launch.transport import Message
from benchbench.model.case import Case
from benchbench.model.device import Probe, Target
from benchbench.model.measurement import Failure
from benchbench.model.run import Settings
from benchbench.running.verification import References, computed, reference_jobs, verify_job

TOGETHER = (("onnxruntime", "openvino"),)
Errors = dict[str, float | Failure | None]


class SharedReferences:
    """By name; whichever process of this session of pytest asks first computes one, the others wait."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of this session, and of no other."""
        self._folder = folder

    def of(self, name: str, compute: Callable[[], Message]) -> Any:
        """`compute()`, unless a test of this session has computed it."""
        path = self._folder / f"{sha256(name.encode()).hexdigest()}.json"
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                path.write_text(json.dumps(compute()))
        return json.loads(path.read_bytes())


class OpenPools:
    """One for each backend, which stays open: importing a framework takes longer than most cases.

    Backends that load each other's models share one.
    """

    def __init__(self, opened: ExitStack, settings: Settings) -> None:
        """`opened` closes them."""
        self._opened = opened
        self._settings = settings
        self._pools: dict[str, tuple[WorkerPool, Probe]] = {}

    def of(self, target: str) -> tuple[WorkerPool, Probe]:
        """Started when first asked for."""
        if target not in self._pools:
            together = next((each for each in TOGETHER if target in each), (target,))
            pool = self._open(targets(together, {}, sys.executable))
            self._pools |= {probe.target.name: (pool, probe) for probe in pool.probe()}
        return self._pools[target]

    @cached_property
    def without_framework(self) -> WorkerPool:
        """For references."""
        return self._open([])

    def _open(self, own: list[Target]) -> WorkerPool:
        return self._opened.enter_context(WorkerPool(own, self._settings, sys.executable))


class Verifier:
    """Holds what real backends compute against float64."""

    def __init__(self, opened: ExitStack, known: SharedReferences, settings: Settings) -> None:
        """`opened` closes its pools."""
        self._pools = OpenPools(opened, settings)
        self._known = known

    def errors_of(self, cases: Sequence[Case]) -> Errors:
        """Case → relative error of its first steps against float64, or its failure; cases of one backend."""
        assert len({case.target for case in cases}) == 1
        pool, probe = self.pool_of(cases[0])
        if probe.status != "ready":
            pytest.skip(probe.reason)
        known = {computed(case): self.reference(case) for case in cases}
        errors: Errors = {}
        export_for(pool, cases)
        pool.run_jobs([verify_job(case, known[computed(case)], errors) for case in cases], quietly)
        return errors

    def pool_of(self, case: Case) -> tuple[WorkerPool, Probe]:
        """The pool that has the workers of the case's backend, and what they found."""
        return self._pools.of(case.target)

    def reference(self, case: Case) -> Any:
        """Of what the case computes, on one device or divided."""

        def compute() -> Message:
            found: References = {}
            self._pools.without_framework.run_jobs(list(reference_jobs([case], found)), quietly)
            reference = found[computed(case)]
            assert not isinstance(reference, Failure), reference.message
            return reference

        return self._known.of(computed(case), compute)


def export_for(pool: WorkerPool, cases: Sequence[Case]) -> None:
    """Have the models exported that several backends load; what fails here fails where it is verified."""
    shared = [case for case in cases if any(case.backend in each for each in TOGETHER)]
    jobs = [Job(message={"kind": "export"}, done=lambda answer: (), case=case, label="") for case in shared]
    pool.run_jobs(jobs, quietly)


def quietly(label: str) -> None:
    """Announces nothing."""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The only process that holds the lock of that file."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wrong(errors: Errors) -> Errors:
    """What is no relative error."""
    return {name: error for name, error in errors.items() if not isinstance(error, float)}


def in_turn(x: Any, weight: Any) -> Any:
    """Their product in float32, each sum added up one term after the other, as a plain loop does."""
    total: Any = np.zeros((len(x), weight.shape[1]), np.float32)
    for column, row in zip(x.T, weight, strict=True):
        total += column[:, None] * row
    return total
