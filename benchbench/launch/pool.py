"""The workers of a run: one per target, fresh each round, and one that only computes references."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from benchbench.backends.base import Backend
from benchbench.launch.process import IMPORT_TIMEOUT_S, Answer, Worker
from benchbench.launch.scratch import RunScratch, UserCode
from benchbench.model.case import Case
from benchbench.model.device import Device, DeviceClass, Probe, Target
from benchbench.model.options import Isolation
from benchbench.model.run import Settings
from benchbench.model.status import Status
from benchbench.registry import load

LATE_S = 0.5  # for a message that came in while another worker was waited for


class WorkerPool:
    """One worker per target, restarted each round, and one that only computes references."""

    def __init__(
        self, targets: Sequence[Target], settings: Settings, python: str, code: UserCode | None = None
    ) -> None:
        """`code`: where the user's own is found; by default where this process was told."""
        self._settings = settings
        self._code = code
        self._targets = {target.name: target for target in targets}
        self._reference_target = Target(name="reference", backend="fake", python=python)
        self._workers: dict[str, Worker] = {}
        self.stages_s: dict[str, float] = {}  # wall time of what no single case can be charged with

    def __enter__(self) -> Self:
        self._scratch = RunScratch(self._code)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._scratch.close()

    def start(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Start a fresh worker for each target, side by side; their first messages."""
        begin = time.perf_counter()
        self.stop()
        faults = {name: self._targets[name].fault for name in names}
        self._workers = {name: self._worker(self._targets[name]) for name in names if not faults[name]}
        messages = {name: {"status": "broken", "reason": fault} for name, fault in faults.items()}
        deadline = begin + IMPORT_TIMEOUT_S  # one for all: they import side by side
        messages |= {
            name: worker.ready(max(deadline - time.perf_counter(), LATE_S))
            for name, worker in self._workers.items()
        }
        self._charge("import", begin)
        return messages

    def stop(self) -> None:
        """End every worker."""
        for worker in self._workers.values():
            worker.close()
        self._workers = {}

    def probe(self) -> list[Probe]:
        """Ask every target what it has."""
        messages = self.start(list(self._targets))
        begin = time.perf_counter()
        probes = [self._probe(name, message) for name, message in messages.items()]
        self._charge("probe", begin)
        return probes

    def reference(self, case: Case) -> list[float]:
        """What the case must give, in float64. Raises RuntimeError when it cannot be computed."""
        begin = time.perf_counter()
        job = {"kind": "reference", "workload": case.workload, "params": case.params, "dtype": case.dtype}
        answer = self.ask_plain(job)
        self._charge("reference", begin)
        if answer.reply is None or "reference" not in answer.reply:
            failed = answer.reply["outcome"]["message"] if answer.reply else answer.message
            raise RuntimeError(f"its float64 reference cannot be computed: {failed}")
        values: list[float] = answer.reply["reference"]
        return values

    def ask_plain(self, job: dict[str, Any], target: str | None = None) -> Answer:
        """The answer to a job that is no case's, of a target's worker or of one without a framework."""
        worker = self._workers.get(target or self._reference_target.name)
        if worker is None:
            worker = self._workers[self._reference_target.name] = self._worker(self._reference_target)
            worker.ready()
        return worker.ask(job, self._settings.timeout_s, fork=True)

    def ask(self, case: Case, job: dict[str, Any]) -> tuple[Answer, str]:
        """The answer, and the isolation the job had. A fork that hangs is tried again as a fresh process."""
        job = {**job, "case": dataclasses.asdict(case)}
        wanted = self._settings.isolation
        if wanted is Isolation.SPAWN:
            return self._spawned(case, job), "spawn"
        answer = self._worker_for(case).ask(job, self._settings.timeout_s, fork=wanted is Isolation.FORK)
        if wanted is Isolation.FORK and answer.status is Status.TIMEOUT and "hung" in answer.message:
            return self._spawned(case, job), "spawn (its fork hung)"
        return answer, wanted

    def read(self, job: dict[str, Any]) -> Answer:
        """The answer of a process that can read XPlane traces: JAX's or TensorFlow's, of our interpreter."""
        python = self._reference_target.python
        for backend in ("jax", "tensorflow"):
            answer = self._alone(Target(name="reader", backend=backend, python=python), job)
            if answer.reply is not None:
                break
        return answer

    def ask_together(
        self, jobs: Sequence[tuple[Case, dict[str, Any]]], meanwhile: Callable[[], None]
    ) -> dict[str, Answer]:
        """Case id → answer. Targets work side by side, so nothing timed may be asked for here.

        `meanwhile`: what this process has to do itself; it may ask for references.
        """
        waiting = {name: [each for each in jobs if each[0].target == name] for name in self._targets}
        found: dict[str, Answer] = {}
        wave = self._posted(waiting)
        meanwhile()
        begin = time.perf_counter()
        while wave:
            for case in wave:
                found[case.id] = self._workers[case.target].collect(self._settings.timeout_s)
            wave = self._posted(waiting)
        self._charge("verify_training", begin)
        return found

    def _posted(self, waiting: dict[str, list[tuple[Case, dict[str, Any]]]]) -> list[Case]:
        """The next case of each target, now under way."""
        wave = [queue.pop(0) for queue in waiting.values() if queue]
        for case, job in wave:
            self._worker_for(case).post({**job, "case": dataclasses.asdict(case)}, fork=True)
        return [case for case, _ in wave]

    def _spawned(self, case: Case, job: dict[str, Any]) -> Answer:
        return self._alone(self._targets[case.target], job)

    def _alone(self, target: Target, job: dict[str, Any]) -> Answer:
        worker = self._worker(target)
        try:
            message = worker.ready()
            if message["status"] != "ready":
                return Answer(None, Status.CRASHED, message["reason"])
            return worker.ask(job, self._settings.timeout_s, fork=False)
        finally:
            worker.close()

    def _worker_for(self, case: Case) -> Worker:
        worker = self._workers.get(case.target)
        if worker is None or not worker.alive:
            worker = self._workers[case.target] = self._worker(self._targets[case.target])
            worker.ready()
        return worker

    def _worker(self, target: Target) -> Worker:
        return Worker(target, self._settings, self._scratch)

    def _probe(self, name: str, message: dict[str, Any]) -> Probe:
        target = self._targets[name]
        backend = load("benchbench.backends", target.backend, Backend)  # type: ignore[type-abstract]
        if message["status"] != "ready":
            return Probe(
                target=target,
                version=None,
                status=message["status"],
                reason=message["reason"],
                remedy=target.remedy or backend.install,
            )
        version = message["version"]
        answer = self._workers[name].ask({"kind": "probe"}, self._settings.timeout_s, fork=True)
        if answer.reply is None or "devices" not in answer.reply:
            reason = answer.message or answer.reply["outcome"]["message"]  # type: ignore[index]
            return Probe(
                target=target, version=version, status="broken", reason=f"asked for its devices: {reason}"
            )
        devices = [
            Device(**{**fields, "device_class": DeviceClass(fields["device_class"])})
            for fields in answer.reply["devices"]
        ]
        return Probe(
            target=target,
            version=version,
            devices=tuple(devices),
            missing=tuple(answer.reply["missing"].items()),
            missing_modes=tuple(answer.reply["missing_modes"].items()),
        )

    def _charge(self, stage: str, begin: float) -> None:
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + time.perf_counter() - begin
