"""The measurements of a pytest session as a run. Independent of pytest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path, PurePath
from platform import python_version

from benchbench.analyse.digest import digest
from benchbench.analyse.metrics import METRICS
from benchbench.documents import comparison, gate
from benchbench.errors import UnreadableInput, UsageError, one_line
from benchbench.gate import baselines
from benchbench.judging.case_tests import GatePolicy
from benchbench.judging.check import decide
from benchbench.judging.comparison import compare_runs
from benchbench.machine.conditions import contended
from benchbench.machine.environment import machine, same_hardware, usable_threads
from benchbench.machine.sampler import TurnSampler, Watch, take_of_others
from benchbench.model.case import Case, Status, Verdict
from benchbench.model.device import Device, Probe, Target
from benchbench.model.function import PYTHON
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import Allocator, Isolation
from benchbench.model.run import Policy, Record, Run, RunInfo, Settings
from benchbench.plan.cases import Plan
from benchbench.redaction import hide_secrets
from benchbench.running.recording import run_head
from benchbench.running.request import Terms
from benchbench.store import codec, runs, selectors
from benchbench.worker.call import load_backend

SUITE = "pytest"


class SessionWriter:
    """Stores the run of a session, each record at once, so that a killed session loses none.

    The run is locked meanwhile, so that two sessions cannot write the same round.
    """

    def __init__(self, results: Path, name: str, policy: Policy) -> None:
        folder = results / runs.RUNS / name
        existing = earlier(results, name)
        if existing is None:
            self.earlier, self.run = None, session(name, policy, None)
            self._writer = runs.create_run(results, self.run.info)
        else:
            self._writer = runs.RunWriter(folder)
            self.earlier = earlier(results, name)  # read again now that it is locked
            self.run = session(name, policy, self.earlier)
        self._folder = folder

    def append(self, info: RunInfo, record: Record) -> Record:
        """Store a record and return it. `info`: the head with all cases so far. Raises CannotWrite."""
        runs.rewrite_head(self._folder, info)
        return self._writer.append(record)

    def end(self) -> None:
        """Finish the run and unlock it. Raises CannotWrite."""
        try:
            self._writer.end()
        finally:
            self._writer.close()


def record(
    test: str, backend: str | None, device: Device, outcome: Measurement | Failure, place: tuple[int, int]
) -> Record:
    """Create the record of a test. `test`: its node id; `place`: round, and position in it.

    A record that could not be read again becomes a failure.
    """
    new_record = Record(
        case=_case(test, backend, device.name),
        round=place[0],
        order=place[1],
        started=time.time(),
        outcome=outcome,
        framework_version=version(backend),
        device_model=device.model,
        isolation=Isolation.SHARED,
    )
    return codec.storable_record(new_record)[0]


def _case(test: str, backend: str | None, device: str) -> Case:
    return Case.of_call(SUITE, test, backend or PYTHON, device)


def sampler(backend: str | None, device: str | None) -> TurnSampler:
    """Sampler of other programs' activity while a test's function is timed, as for a case on that device."""
    virtual = load_backend(backend or PYTHON).virtual
    sources = Watch(usable_threads()).sources(_case("", backend, device or "cpu"), virtual=virtual)
    return TurnSampler(sources, take_of_others)


def surroundings(record: Record) -> list[str]:
    """Lines about other programs that used the machine considerably while the function was timed."""
    outcome = record.outcome
    return [entry.text for entry in contended([outcome])] if isinstance(outcome, Measurement) else []


def failure(error: BaseException, backend: str | None) -> Failure:
    """Failure for an exception of the function."""
    is_out_of_memory = load_backend(backend or PYTHON).out_of_memory(error)
    message = hide_secrets()(one_line(error))
    return Failure(status=Status.OUT_OF_MEMORY if is_out_of_memory else Status.FAILED, message=message)


def version(backend: str | None) -> str | None:
    """Version of the backend's framework, without importing it; without a backend, that of Python."""
    if backend is None or backend == PYTHON:
        return python_version()
    for distribution in load_backend(backend).distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def earlier(results: Path, name: str) -> Run | None:
    """Earlier sessions stored under `name`, or None.

    Raises UsageError for an invalid name, or if they were measured on other hardware.
    """
    if not runs.NAME.fullmatch(name) or selectors.LATEST.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a run.", "Use letters, digits, dots, dashes, underscores."
        )
    if name not in selectors.folder_names(results):
        return None
    run = runs.read_run(results / runs.RUNS / name)
    if not same_hardware(run.info.machine, machine()):
        raise UsageError(f"The run {name!r} was measured on other hardware.", "Choose another name.")
    return run


def session(name: str, policy: Policy, earlier: Run | None) -> Run:
    """Create a run without records for this session, which is one process; `earlier`: previous sessions."""
    settings = Settings(threads=usable_threads(), allocator=Allocator.SYSTEM, isolation=Isolation.SHARED)
    terms = Terms(policy=policy, settings=settings, seed=0, command=(SUITE,))
    info = run_head((), Plan((), ()), terms)
    first_info = earlier.info if earlier else info
    rounds = 1 + max((record.round for record in earlier.records), default=-1) if earlier else 0
    head = replace(
        info,
        id=name,
        started=first_info.started,
        policy=replace(policy, rounds=rounds + 1),
        probes=first_info.probes,
        plan=first_info.plan,
        tags=dict(info.tags.items() & first_info.tags.items()),
    )
    return Run(info=head, records=())


def run_so_far(run: Run, records: Sequence[Record], devices: Mapping[str, Iterable[Device]]) -> Run:
    """Return `run` with this session's records; `devices`: the devices used, by target."""
    plan = {case.id: case for case in (*run.info.plan, *(record.case for record in records))}
    probes = {probe.target.name: probe for probe in run.info.probes}
    versions = {record.case.target: record.framework_version for record in records}
    for name, used in devices.items():
        target = Target(name=name, backend=name, python=PurePath(sys.executable).name)
        probes[name] = Probe(target=target, version=versions[name], devices=tuple(used))
    info = replace(run.info, plan=tuple(plan.values()), probes=tuple(probes.values()))
    return Run(info=info, records=tuple(records))


def only(run: Run, case: str) -> Run:
    """Reduce a run to one case."""
    plan = tuple(planned for planned in run.info.plan if planned.id == case)
    records = tuple(record for record in run.records if record.case.id == case)
    return Run(info=replace(run.info, plan=plan, left_out=()), records=records)


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a case since its baseline. `p`: p-value for the observed direction, None without a test."""

    verdict: Verdict
    p: float | None
    text: str


def regression_of(run: Run, name: str, results: Path) -> Change:
    """Compare the one case of `run` with the baseline `name`, or else the stored run of that name.

    Raises UnreadableInput, NotComparable.
    """
    (case,) = run.info.plan
    if name not in baselines.baseline_names(results):
        ref = runs.read_run(selectors.find_run(results, name))
        (verdict,) = compare_runs(only(ref, case.id), run).verdicts
        text = "; ".join(comparison.sentences(verdict))
        return Change(verdict.verdict, verdict.p_holm, text)
    sessions = baselines.require_sessions(results, name, run.info.machine)
    decision = decide(sessions, digest(run), GatePolicy(metrics=METRICS[:1], confirm=False))
    finding = next(case_verdict for case_verdict in decision.findings if case_verdict.case == case.id)
    text = next(
        case_verdict.text for case_verdict in gate.case_verdicts(decision) if case_verdict.case == case.id
    )
    return Change(finding.verdict, finding.first.p_holm if finding.first else None, text)


def check_exists(name: str, results: Path) -> None:
    """Raise UnreadableInput or NotComparable if there is no such run or baseline for this machine."""
    if name in baselines.baseline_names(results):
        baselines.require_sessions(results, name, machine())
        return
    try:
        folder = selectors.find_run(results, name)
    except UnreadableInput as error:
        raise UnreadableInput(str(error), f"pytest --accelbench-save {name} stores one.") from error
    runs.read_run(folder)
