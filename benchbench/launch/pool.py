"""What a run asks of its workers: devices, references, cases; one by one or side by side."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec

from benchbench.backends.base import Backend
from benchbench.errors import Unsupported, UsageError
from benchbench.launch.local import LocalTransport
from benchbench.launch.lost_devices import LostDevices, is_accelerator
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
    Worker,
)
from benchbench.launch.workers import REFERENCE, RunWorkers, Template, template_of
from benchbench.machine.environment import usable_threads
from benchbench.machine.sampler import TurnSampler
from benchbench.model.case import Case
from benchbench.model.device import Device, Probe, Target
from benchbench.model.function import PYTHON, Call
from benchbench.model.options import Isolation
from benchbench.model.run import Settings
from benchbench.model.status import Status
from benchbench.registry import load_class

WORKERS_PER_CORE = 2  # that import while backends are looked for: an import waits for the disk, too
AFTER_HANG = "spawn (its fork hung)"  # the isolation of such a job
TRACE_READERS = ("jax", "tensorflow")  # backends whose framework reads XPlane traces


class WorkerPool:
    """One worker per target and environment, restarted each round, and one that only computes references."""

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

        `code`: where the user's own is; by default what accelbench.toml and the environment say. `calls`:
        the workload of a case that calls a function → how it is called.
        """
        self._calls = calls
        self._settings = settings
        self._code = code
        self._open = transport
        self._python = python
        self._targets = {target.name: target for target in targets}
        self._lost = LostDevices()
        self.stages_s: dict[str, float] = {}  # wall time that is no single case's, by what it went into

    def __enter__(self) -> Self:
        reference = Target(name=REFERENCE.target, backend="fake", python=self._python)
        self._transport = self._open(self._settings, self._code)
        self._workers = RunWorkers(self._transport, {REFERENCE.target: reference, **self._targets})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def start(self, cases: Iterable[Case]) -> None:
        """Fresh workers for what is measured next, side by side; all others are ended.

        Where time is virtual, a worker stays: a fresh one would give the same numbers.
        """
        wanted = {template_of(case) for case in cases}
        staying = self._workers.staying(wanted)
        self._start(sorted(wanted - staying), staying)

    def start_ahead(self, cases: Iterable[Case], rounds: int) -> None:
        """Start workers for so many later rounds, as far as memory allows: they import side by side.

        To be called before anything is timed, as is `await_ahead`.
        """
        if self._forks:
            self._workers.start_ahead(sorted(set(map(template_of, cases))), rounds)

    def await_ahead(self, cases: Iterable[Case]) -> None:
        """Wait until these workers and this round's have imported what the cases will need."""
        begin = time.perf_counter()
        kinds: dict[Template, set[tuple[str, str]]] = {}
        for case in cases:
            if not case.is_call:
                kinds.setdefault(template_of(case), set()).add((str(case.phase), case.mode))
        self._workers.preload(kinds)
        self._charge("import", begin)

    def probe(self, later_rounds: int = 0) -> list[Probe]:
        """Ask every target for its devices.

        `later_rounds`: of the run that follows; their workers begin to import meanwhile, as far as there are
        cores for them.
        """
        at_once = WORKERS_PER_CORE * usable_threads() // max(len(self._targets), 1)
        templates = [Template(name) for name in self._targets]
        rounds_ahead = min(later_rounds, at_once - 1) if self._forks else 0
        greetings = self._start(templates, rounds_ahead=rounds_ahead)
        begin = time.perf_counter()
        probes = [self._probe(template, greeting) for template, greeting in greetings.items()]
        self._charge("probe", begin)
        return probes

    def watch(self, case: Case) -> AbstractContextManager[Observer]:
        """Watch the machine that the case is measured on."""
        return self._transport.watch(case)

    def interpreter(self, target: str) -> str:
        """Which Python a target's processes run."""
        return self._targets[target].python

    def first_ready(self) -> str:
        """The name of the first target whose framework can be imported. Raises UsageError if none can."""
        why = []
        for name, target in self._targets.items():
            greeting = self._start([Template(name)])[Template(name)]
            if greeting.status == "ready":
                return name
            backend = load_class("benchbench.backends", target.backend, Backend)  # type: ignore[type-abstract]
            why.append((f"{name}: {greeting.reason}", target.remedy or backend.remedy()))
        raise UsageError(why[0][0], why[0][1])

    def ask_plain(self, job: Message, target: str | None = None, *, fork: bool = True) -> Answer:
        """The answer to a job about no case, of a target's worker or of one without a framework.

        `fork`: in a process of its own; else the worker keeps what the job has imported.
        """
        worker = self._workers.usable(Template(target) if target else REFERENCE)
        return worker.ask(job, self._settings.timeout_s, fork=fork)

    def ask(self, case: Case, job: Message) -> tuple[Answer, str]:
        """The answer, and how the job was isolated. A fork that hangs is tried again as a fresh process."""
        if lost := self._lost.refusal(case):
            return lost, "none"
        answer, isolation = self._asked(case, job)
        return self._lost.recorded(case, answer), isolation

    def ask_after_hang(self, case: Case, job: Message) -> tuple[Answer, str]:
        """The same of a case whose fork has hung: in a fresh process."""
        if lost := self._lost.refusal(case):
            return lost, "none"
        job, files = self._with_call(case, job)
        return self._lost.recorded(case, self._spawned(case, job, files)), AFTER_HANG

    def can_alternate(self, case: Case) -> bool:
        """Whether the case's process can be stopped while others are timed.

        Virtual time does not pass meanwhile, ranks wait for each other, and a TPU admits one process.
        """
        backend = load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]
        return (
            self._transport.can_alternate
            and self._settings.isolation is Isolation.FORK
            and not backend.virtual
            and case.placement.devices == 1
            and not case.device.startswith("tpu")
        )

    def begin(self, case: Case, job: Message) -> RunningJob | Answer:
        """A process forked for the case, which takes turns; an answer if its device is lost."""
        if lost := self._lost.refusal(case):
            return lost
        job, files = self._with_call(case, {**job, "turns": True})
        return self._workers.usable(template_of(case)).begin(self._job_of(case, job), files, fork=True)

    def ended(self, case: Case, answer: Answer) -> Answer:
        """The answer of a process that `begin` started. A stuck one has lost its device."""
        return self._lost.recorded(case, answer)

    def refusal(self, case: Case) -> Answer | None:
        """The answer to a case whose device is lost; None if it is not."""
        return self._lost.refusal(case)

    def turn_sampler(self, case: Case) -> TurnSampler:
        """Samples before and after each turn of the case."""
        return self._transport.turn_sampler(case)

    @property
    def timeout_s(self) -> float:
        """Seconds that a job may take."""
        return self._settings.timeout_s

    def _with_call(self, case: Case, job: Message) -> tuple[Message, Files | None]:
        """The job, with the function that the case calls, if it is one, and the files of that."""
        if not case.is_call:
            return job, None
        call = self._calls[case.workload]
        return {**job, "call": message_of_call(call)}, call.files

    def look_at(self, call: Call, backend: str | None, device: str | None) -> Answer:
        """What waits for a function, told by its first call in a process without a framework of ours."""
        worker = self._workers.usable(Template(PYTHON))
        job = {"kind": "look", "call": message_of_call(call), "backend": backend, "device": device}
        return worker.ask(job, self._settings.timeout_s, call.files, fork=True)

    def _asked(self, case: Case, job: Message) -> tuple[Answer, str]:
        wanted = self._settings.isolation
        job, files = self._with_call(case, job)
        if wanted is Isolation.SPAWN:
            return self._spawned(case, job, files), "spawn"
        worker = self._workers.usable(template_of(case))
        fork = wanted is Isolation.FORK or case.placement.devices > 1  # a process's devices are fixed once
        answer = worker.ask(self._job_of(case, job), self._settings.timeout_s, files, fork=fork)
        if fork and answer.end is JobEnd.HUNG:
            return self._spawned(case, job, files), AFTER_HANG
        return answer, wanted

    def read(self, job: Message, files: Files) -> Answer:
        """The answer of a process that can read XPlane traces: JAX's or TensorFlow's, of our interpreter."""
        for backend in TRACE_READERS:
            reader = Target(name="reader", backend=backend, python=self._python)
            answer = self._ask_fresh(reader, Template(reader.name), job, files)
            if answer.reply is not None:
                break
        return answer

    def ask_together(self, jobs: Iterable[Job], announce: Callable[[str], None]) -> None:
        """Ask all that is needed before anything is timed: workers work side by side.

        Each answer goes to its job, which may have further ones.
        """
        begin = time.perf_counter()

        def message_of(job: Job) -> Message:
            announce(job.label)
            return job.message if job.case is None else self._job_of(job.case, job.message)

        for job in JobQueues(self._workers, self._lost, self._settings.timeout_s).answers(jobs, message_of):
            if job.case is None:
                begin = self._charge("reference", begin)
        self._charge("verify_training", begin)

    def _spawned(self, case: Case, job: Message, files: Files | None = None) -> Answer:
        return self._ask_fresh(self._targets[case.target], template_of(case), self._job_of(case, job), files)

    def _ask_fresh(
        self, target: Target, template: Template, job: Message, files: Files | None = None
    ) -> Answer:
        """The answer of a worker that is started for this job alone."""
        worker = self._transport.start(target, dict(template.environment), template.threads)
        try:
            greeting = worker.ready()
            if greeting.status != "ready":
                return Answer(None, JobEnd.CRASHED, greeting.reason)
            return worker.ask(job, self._settings.timeout_s, files, fork=False)
        finally:
            worker.close()

    @property
    def _forks(self) -> bool:
        """Whether jobs are forked from workers that have imported, or each imports by itself."""
        return self._settings.isolation is not Isolation.SPAWN

    def _start(
        self, templates: Sequence[Template], staying: Collection[Template] = (), rounds_ahead: int = 0
    ) -> dict[Template, Greeting]:
        begin = time.perf_counter()
        greetings = self._workers.start(templates, staying, rounds_ahead)
        self._charge("import", begin)
        return greetings

    def _probe(self, template: Template, greeting: Greeting) -> Probe:
        target = self._targets[template.target]
        if greeting.status != "ready":
            backend = load_class("benchbench.backends", target.backend, Backend)  # type: ignore[type-abstract]
            return Probe(
                target=target,
                version=None,
                status=greeting.status,
                reason=greeting.reason,
                remedy=target.remedy or backend.remedy(),
            )
        answer = self._workers.posted(template).ask({"kind": "probe"}, self._settings.timeout_s, fork=True)
        try:
            reply = msgspec.convert(answer.reply, _Devices)
        except msgspec.ValidationError as error:
            reason = f"asked for its devices: {reason_in(answer) or error}"
            return Probe(target=target, version=greeting.version, status="broken", reason=reason)
        return Probe(
            target=target,
            version=greeting.version,
            devices=reply.devices,
            missing=tuple(reply.missing.items()),
            missing_modes=tuple(reply.missing_modes.items()),
        )

    def _job_of(self, case: Case, job: Message) -> Message:
        about = {"case": dataclasses.asdict(case), "case_id": case.id}
        return {**job, **about, "timeout_s": self._settings.timeout_s}

    def _charge(self, stage: str, begin: float) -> float:
        """Add what has passed since `begin` to the stage; the time now."""
        now = time.perf_counter()
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + now - begin
        return now


def message_of_call(call: Call) -> Message:
    """What a worker is told of a call; the files travel beside it."""
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


LOOK_S = 0.01  # between two looks at which workers have answered
LAST_PART = 0.05  # of a job's time, in which it alone is waited for, and at most
LAST_S = 5.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """What one worker is asked, and what is done with its answer."""

    message: Message
    done: Callable[[Answer], Iterable[Job]]  # gives the jobs that the answer makes possible
    case: Case | None = None  # whose worker is asked; None: the one without a framework
    label: str  # for the user, while it is under way

    @property
    def template(self) -> Template:
        """The worker that it needs."""
        return REFERENCE if self.case is None else template_of(self.case)

    @property
    def uses_accelerator(self) -> bool:
        """Whether it computes on one."""
        return self.case is not None and is_accelerator(self.case.device)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A job under way."""

    job: Job
    worker: Worker
    since: float  # by `time.monotonic`

    def is_over(self, timeout_s: float) -> bool:
        """Whether its answer is there, or its time is nearly over."""
        return self.worker.has_ended() or self._left(timeout_s) <= min(LAST_S, LAST_PART * timeout_s)

    def collect(self, timeout_s: float) -> Answer:
        """The answer, or how it ended when its time was over."""
        return self.worker.collect(max(self._left(timeout_s), 0.0))

    def _left(self, timeout_s: float) -> float:
        return self.since + timeout_s - time.monotonic()


class JobQueues:
    """The jobs of one call: those that wait, by worker, and those under way.

    Workers work side by side, each at one job after the other. This process waits for all of them in one
    thread: a worker ends with the thread that started it.
    """

    def __init__(self, workers: RunWorkers, lost: LostDevices, timeout_s: float) -> None:
        """`timeout_s`: of each job."""
        self._workers = workers
        self._lost = lost
        self._timeout_s = timeout_s
        self._waiting: dict[Template, list[Job]] = {}
        self._begun: dict[Template, _Begun] = {}

    def answers(self, jobs: Iterable[Job], begin: Callable[[Job], Message]) -> Iterator[Job]:
        """Yield each job once it has its answer, in the order in which jobs end.

        `begin`: called when a job begins; the message for its worker.
        """
        self._add(jobs)
        while self._waiting or self._begun:
            for template in self._startable():
                self._start(template, begin)
            over = [each for each, begun in self._begun.items() if begun.is_over(self._timeout_s)]
            for template in over:
                yield self._ended(self._begun.pop(template))
            if not over:
                time.sleep(LOOK_S)

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._waiting.setdefault(job.template, []).append(job)

    def _startable(self) -> Iterator[Template]:
        """Workers that are free and have a job, at most one of all on an accelerator.

        Frameworks do not share an accelerator's memory well, and a TPU admits one process.
        """
        for template in [each for each in self._waiting if each not in self._begun]:
            taken = any(begun.job.uses_accelerator for begun in self._begun.values())
            if not (taken and self._waiting[template][0].uses_accelerator):
                yield template

    def _start(self, template: Template, begin: Callable[[Job], Message]) -> None:
        """Begin the worker's next job; a job on a lost device has its answer without one."""
        job = self._waiting[template].pop(0)
        if not self._waiting[template]:
            del self._waiting[template]
        if job.case and (refusal := self._lost.refusal(job.case)):
            self._add(job.done(refusal))
            return
        message, worker = begin(job), self._workers.usable(template)
        worker.post(message, fork=True)
        self._begun[template] = _Begun(job, worker, time.monotonic())

    def _ended(self, begun: _Begun) -> Job:
        answer = begun.collect(self._timeout_s)
        if begun.job.case:
            answer = self._lost.recorded(begun.job.case, answer)
        self._add(begun.job.done(answer))
        return begun.job


def reference_message(case: Case, *, small: bool, replicas: int, seed: int) -> Message:
    """What a worker without a framework is asked: what the case must give, in float64.

    `small`: of the workload's small size, with tolerances for float32. `replicas`: into how many parts a
    batch is divided that each have batch statistics of their own. `seed`: of the places that are compared.
    """
    needed = {"workload": case.workload, "params": case.params}
    about = {**needed, "placement": dataclasses.asdict(case.placement), "replicas": replicas}
    return {"kind": "reference", "dtype": case.dtype, "about": about, "small": small, "seed": seed}


def reference_in(answer: Answer) -> Message:
    """The fields of a `worker.verify.Reference`.

    Raises RuntimeError when it could not be computed, Unsupported when the workload says so.
    """
    if answer.reply is None or "reference" not in answer.reply:
        outcome: Any = (answer.reply or {}).get("outcome")
        if isinstance(outcome, dict) and outcome.get("status") == Status.UNSUPPORTED:
            raise Unsupported(reason_in(answer))
        raise RuntimeError(f"its float64 reference cannot be computed: {reason_in(answer)}")
    reference: Message = answer.reply["reference"]
    return reference


def reason_in(answer: Answer) -> str:
    """Why there is no reply, or the failure that it reports; empty where it reports none."""
    outcome: Any = (answer.reply or {}).get("outcome")
    return answer.message or (str(outcome.get("message", "")) if isinstance(outcome, dict) else "")
