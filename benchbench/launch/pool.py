"""The workers of a run, which list devices, compute references and measure cases."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Self

import msgspec

from benchbench.backends.base import backend_class
from benchbench.errors import Unsupported, UsageError
from benchbench.launch.local import LocalTransport
from benchbench.launch.project import UserCode
from benchbench.launch.transport import (
    Answer,
    Files,
    Greeting,
    JobEnd,
    Message,
    Observer,
    RunningJob,
    Transport,
)
from benchbench.launch.workers import (
    REFERENCE,
    Job,
    JobQueues,
    LostDevices,
    RunWorkers,
    Template,
    template_of,
)
from benchbench.machine.environment import usable_threads
from benchbench.machine.sampler import TurnSampler
from benchbench.model.case import Case, Status
from benchbench.model.device import Device, Probe, Target
from benchbench.model.function import PYTHON, Call
from benchbench.model.options import Isolation
from benchbench.model.run import Settings

WORKERS_PER_CORE = 2  # importing in parallel, since an import also waits for the disk
AFTER_HANG = "spawn (its fork hung)"  # isolation of a job that was repeated after its fork hung
TRACE_READERS = ("jax", "tensorflow")  # backends whose framework reads XPlane traces


class WorkerPool:
    """One worker per target and environment, restarted each round, and one for references."""

    def __init__(
        self,
        targets: Sequence[Target],
        settings: Settings,
        python: str,
        code: UserCode | None = None,
        transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
        calls: Mapping[str, Call] = MappingProxyType({}),
    ) -> None:
        """`python`: the interpreter that computes references.

        `code`: the folders of the user's code; by default those of accelbench.toml and the environment.
        `calls`: for cases that call a user's function, the call by workload name.
        """
        self._calls = calls
        self._settings = settings
        self._code = code
        self._transport_class = transport
        self._python = python
        self._targets = {target.name: target for target in targets}
        self._lost = LostDevices()
        self.stages_s: dict[str, float] = {}  # wall time shared by all cases, by stage

    def __enter__(self) -> Self:
        reference = Target(name=REFERENCE.target, backend="fake", python=self._python)
        self._transport = self._transport_class(self._settings, self._code)
        self._workers = RunWorkers(self._transport, {REFERENCE.target: reference, **self._targets})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def start(self, cases: Iterable[Case]) -> None:
        """Start new workers for the cases, in parallel, and end all others.

        Workers with virtual time are reused: new ones would give the same numbers.
        """
        templates = {template_of(case) for case in cases}
        reusable = self._workers.reusable(templates)
        self._start(sorted(templates - reusable), reusable)

    def prefetch_workers(self, cases: Iterable[Case], rounds: int) -> None:
        """Start workers for `rounds` later rounds, as far as memory allows. They import in parallel.

        Call this and `wait_for_workers` before anything is timed.
        """
        if self._forks:
            self._workers.prefetch_workers(sorted(set(map(template_of, cases))), rounds)

    def wait_for_workers(self, cases: Iterable[Case]) -> None:
        """Wait until the prefetched and the current workers have imported what the cases need."""
        begin = time.perf_counter()
        kinds: dict[Template, set[tuple[str, str]]] = {}
        for case in cases:
            if not case.is_call:
                kinds.setdefault(template_of(case), set()).add((str(case.phase), case.mode))
        self._workers.preload(kinds)
        self._add_time("import", begin)

    def probe(self, later_rounds: int = 0) -> list[Probe]:
        """Find the devices of every target.

        `later_rounds`: number of further rounds in the run. Their workers start to import at the same time,
        as far as there are cores for them.
        """
        parallel_rounds = WORKERS_PER_CORE * usable_threads() // max(len(self._targets), 1)
        templates = [Template(name) for name in self._targets]
        rounds_ahead = min(later_rounds, parallel_rounds - 1) if self._forks else 0
        greetings = self._start(templates, rounds_ahead=rounds_ahead)
        begin = time.perf_counter()
        probes = [self._probe(template, greeting) for template, greeting in greetings.items()]
        self._add_time("probe", begin)
        return probes

    def watch(self, case: Case) -> AbstractContextManager[Observer]:
        """Sample the machine while the case is measured."""
        return self._transport.watch(case)

    def interpreter(self, target: str) -> str:
        """The path of a target's Python interpreter."""
        return self._targets[target].python

    def first_ready(self) -> str:
        """The name of the first target whose framework can be imported. Raises UsageError if none can."""
        failures = []
        for name, target in self._targets.items():
            greeting = self._start([Template(name)])[Template(name)]
            if greeting.status == "ready":
                return name
            backend = backend_class(target.backend)
            failures.append((f"{name}: {greeting.reason}", target.remedy or backend.remedy()))
        raise UsageError(*failures[0])

    def run_job(self, job: Message, target: str) -> Answer:
        """Run a job that belongs to no case in a target's worker, which keeps the job's imports."""
        worker = self._workers.live_worker(Template(target))
        return worker.run(job, self._settings.timeout_s, fork=False)

    def run_case(self, case: Case, job: Message, *, after_hang: bool = False) -> tuple[Answer, str]:
        """Run a case's job; return the answer and the isolation. A job that hung in a fork is run again.

        `after_hang`: a fork of the case has hung already, so run the job in a new process at once.
        """
        if refusal := self._lost.refusal(case):
            return refusal, "none"
        job, files = self._with_call(case, job)
        if after_hang:
            answer, isolation = self._run_spawned(case, job, files), AFTER_HANG
        else:
            answer, isolation = self._run_isolated(case, job, files)
        return self._lost.record(case, answer), isolation

    def can_alternate(self, case: Case) -> bool:
        """True if the case can take turns: its process can be stopped while others are timed.

        Cases with virtual time, with several ranks and on a TPU (which admits one process) cannot.
        """
        backend = backend_class(case.backend)
        return (
            self._transport.can_alternate
            and self._settings.isolation is Isolation.FORK
            and not backend.virtual
            and case.placement.devices == 1
            and not case.device.startswith("tpu")
        )

    def begin(self, case: Case, job: Message) -> RunningJob | Answer:
        """Fork a process for the case, which takes turns. Returns an answer instead if its device is lost."""
        if refusal := self._lost.refusal(case):
            return refusal
        job, files = self._with_call(case, {**job, "turns": True})
        return self._workers.live_worker(template_of(case)).begin(self._job_of(case, job), files, fork=True)

    def record_end(self, case: Case, answer: Answer) -> Answer:
        """Return the answer of a process started by `begin`. If it is stuck, mark its device as lost."""
        return self._lost.record(case, answer)

    def refusal(self, case: Case) -> Answer | None:
        """The answer to a case on a lost device; None if the device is usable."""
        return self._lost.refusal(case)

    def turn_sampler(self, case: Case) -> TurnSampler:
        """A sampler that reads the machine's counters before and after each turn of the case."""
        return self._transport.turn_sampler(case)

    @property
    def timeout_s(self) -> float:
        """The time limit of one job."""
        return self._settings.timeout_s

    def _with_call(self, case: Case, job: Message) -> tuple[Message, Files | None]:
        """Add the case's call to the job; also return the call's files. Other cases' jobs are unchanged."""
        if not case.is_call:
            return job, None
        call = self._calls[case.workload]
        return {**job, "call": message_of_call(call)}, call.files

    def inspect_call(self, call: Call, backend: str | None, device: str | None) -> Answer:
        """Call a function once, in a process without a backend, to find which framework synchronises it."""
        worker = self._workers.live_worker(Template(PYTHON))
        job = {"kind": "look", "call": message_of_call(call), "backend": backend, "device": device}
        return worker.run(job, self._settings.timeout_s, call.files, fork=True)

    def compare_calls(self, first: Call, second: Call) -> Answer:
        """Call two functions with the first one's arguments, in one process, and compare their results."""
        worker = self._workers.live_worker(Template(PYTHON))
        pickled = second.function.pickled and f"second.{second.function.pickled}"
        function = dataclasses.replace(second.function, pickled=pickled)
        files = dict(first.files)
        if pickled:
            files[pickled] = second.files[second.function.pickled]
        other = dataclasses.replace(second, function=function)
        job = {"kind": "agree", "first": message_of_call(first), "second": message_of_call(other)}
        return worker.run(job, self._settings.timeout_s, files, fork=True)

    def _run_isolated(self, case: Case, job: Message, files: Files | None) -> tuple[Answer, str]:
        isolation = self._settings.isolation
        if isolation is Isolation.SPAWN:
            return self._run_spawned(case, job, files), "spawn"
        worker = self._workers.live_worker(template_of(case))
        fork = isolation is Isolation.FORK or case.placement.devices > 1  # a process cannot change devices
        answer = worker.run(self._job_of(case, job), self._settings.timeout_s, files, fork=fork)
        if fork and answer.end is JobEnd.HUNG:
            return self._run_spawned(case, job, files), AFTER_HANG
        return answer, isolation

    def read_traces(self, job: Message, files: Files) -> Answer:
        """Run a job that reads XPlane traces, with the JAX or TensorFlow of this interpreter."""
        for backend in TRACE_READERS:
            reader = Target(name="reader", backend=backend, python=self._python)
            answer = self._run_in_new_worker(reader, Template(reader.name), job, files)
            if answer.reply is not None:
                break
        return answer

    def run_jobs(self, jobs: Iterable[Job], announce: Callable[[str], None]) -> None:
        """Run jobs and the jobs that follow from their answers, in parallel, before anything is timed.

        `announce`: called with the label of each job that starts.
        """
        begin = time.perf_counter()

        def message_of(job: Job) -> Message:
            announce(job.label)
            return job.message if job.case is None else self._job_of(job.case, job.message)

        for job in JobQueues(self._workers, self._lost, self._settings.timeout_s).answers(jobs, message_of):
            if job.case is None:
                begin = self._add_time("reference", begin)
        self._add_time("verify_training", begin)

    def _run_spawned(self, case: Case, job: Message, files: Files | None) -> Answer:
        target = self._targets[case.target]
        return self._run_in_new_worker(target, template_of(case), self._job_of(case, job), files)

    def _run_in_new_worker(
        self, target: Target, template: Template, job: Message, files: Files | None
    ) -> Answer:
        """Start a worker for one job, run it, and end the worker."""
        worker = self._transport.start(target, dict(template.environment), template.threads)
        try:
            greeting = worker.ready()
            if greeting.status != "ready":
                return Answer(None, JobEnd.CRASHED, greeting.reason)
            return worker.run(job, self._settings.timeout_s, files, fork=False)
        finally:
            worker.close()

    @property
    def _forks(self) -> bool:
        """True if jobs are forked from workers that have imported their framework."""
        return self._settings.isolation is not Isolation.SPAWN

    def _start(
        self, templates: Sequence[Template], reusable: Collection[Template] = (), rounds_ahead: int = 0
    ) -> dict[Template, Greeting]:
        begin = time.perf_counter()
        greetings = self._workers.start(templates, reusable, rounds_ahead)
        self._add_time("import", begin)
        return greetings

    def _probe(self, template: Template, greeting: Greeting) -> Probe:
        target = self._targets[template.target]
        if greeting.status != "ready":
            backend = backend_class(target.backend)
            return Probe(
                target=target,
                version=None,
                status=greeting.status,
                reason=greeting.reason,
                remedy=target.remedy or backend.remedy(),
            )
        answer = self._workers.latest_worker(template).run(
            {"kind": "probe"}, self._settings.timeout_s, fork=True
        )
        try:
            reply = msgspec.convert(answer.reply, _Devices)
        except msgspec.ValidationError as error:
            reason = f"its devices could not be listed: {answer.failure_reason or error}"
            return Probe(target=target, version=greeting.version, status="broken", reason=reason)
        return Probe(
            target=target,
            version=greeting.version,
            devices=reply.devices,
            missing=tuple(reply.missing.items()),
            missing_modes=tuple(reply.missing_modes.items()),
        )

    def _job_of(self, case: Case, job: Message) -> Message:
        identity = {"case": dataclasses.asdict(case), "case_id": case.id}
        return {**job, **identity, "timeout_s": self._settings.timeout_s}

    def _add_time(self, stage: str, begin: float) -> float:
        """Add the time since `begin` to a stage; return the current time."""
        now = time.perf_counter()
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + now - begin
        return now


def message_of_call(call: Call) -> Message:
    """The call as a JSON object, without its files."""
    return {
        "function": dataclasses.asdict(call.function),
        "setup": dataclasses.asdict(call.setup) if call.setup else None,
        "arguments": call.arguments,
        "search_path": list(call.search_path),
        "folder": call.folder,
    }


class _Devices(msgspec.Struct):
    """The reply to a probe."""

    devices: tuple[Device, ...]
    missing: dict[str, str]
    missing_modes: dict[str, str]


def reference_message(case: Case, *, small: bool, replicas: int, seed: int) -> Message:
    """The job that computes a case's expected result in float64, in a worker without a framework.

    `small`: use the workload's small size, with tolerances for float32. `replicas`: number of parts of a
    batch with separate batch statistics. `seed`: selects the compared elements.
    """
    about = {
        "workload": case.workload,
        "params": case.params,
        "placement": dataclasses.asdict(case.placement),
        "replicas": replicas,
    }
    return {"kind": "reference", "dtype": case.dtype, "about": about, "small": small, "seed": seed}


def decode_reference(answer: Answer) -> Message:
    """Return the fields of a `worker.verify.Reference`.

    Raises RuntimeError if it could not be computed, Unsupported if the workload does not support it.
    """
    if answer.reply is None or "reference" not in answer.reply:
        if answer.outcome.get("status") == Status.UNSUPPORTED:
            raise Unsupported(answer.failure_reason)
        raise RuntimeError(f"its float64 reference cannot be computed: {answer.failure_reason}")
    reference: Message = answer.reply["reference"]
    return reference
