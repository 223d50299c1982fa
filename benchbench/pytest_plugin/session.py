"""What the tests of a pytest session measured, as a run. Knows no pytest."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePath
from platform import python_version

from benchbench import __version__
from benchbench.analyse.digest import digest
from benchbench.analyse.metrics import METRICS
from benchbench.documents import comparison, gate
from benchbench.errors import UnreadableInput, UsageError
from benchbench.gate import baselines
from benchbench.judging.check import decide
from benchbench.judging.comparison import compare_runs
from benchbench.judging.session_cases import GatePolicy
from benchbench.machine.conditions import contended
from benchbench.machine.environment import (
    machine,
    machine_id,
    name_hashes,
    same_hardware,
    usable_threads,
)
from benchbench.machine.sampler import EndSampler, Watch
from benchbench.machine.variables import tuning_variables
from benchbench.model.case import Case
from benchbench.model.device import Device, Probe, Target
from benchbench.model.function import PYTHON
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import Allocator, Isolation
from benchbench.model.record import Record
from benchbench.model.run import Policy, Run, RunInfo, Settings
from benchbench.model.status import Status, Verdict
from benchbench.plan.revision import commit_tag
from benchbench.redaction import hide_secrets
from benchbench.store import codec, runs, selectors
from benchbench.worker.call import backend_named
from benchbench.worker.causes import one_line

SUITE = "pytest"


class SessionWriter:
    """The run of a session on disk: each record as it is made, so that a session that is killed loses none.

    The run is locked meanwhile: two sessions at once cannot be one round.
    """

    def __init__(self, results: Path, name: str, policy: Policy) -> None:
        """Raises CannotWrite, UsageError, UnreadableInput."""
        folder = results / runs.RUNS / name
        before = earlier(results, name)
        if before is None:
            self.earlier, self.run = None, session(name, policy, None)
            self._writer = runs.create_run(results, self.run.info)
        else:
            self._writer = runs.RunWriter(folder)
            self.earlier = earlier(results, name)  # as it is now that nobody else adds to it
            self.run = session(name, policy, self.earlier)
        self._folder = folder

    def append(self, info: RunInfo, record: Record) -> Record:
        """`info`: the head with what is measured so far. Returns what is stored. Raises CannotWrite."""
        runs.rewrite_head(self._folder, info)
        return self._writer.append(record)

    def end(self) -> None:
        """Raises CannotWrite."""
        try:
            self._writer.end()
        finally:
            self._writer.close()


def record(
    test: str, backend: str | None, device: Device, outcome: Measurement | Failure, place: tuple[int, int]
) -> Record:
    """`test`: its node id; `place`: round, and position in it. What could not be read again is a failure."""
    made = Record(
        case=_case(test, backend, device.name),
        round=place[0],
        order=place[1],
        started=time.time(),
        outcome=outcome,
        framework_version=version(backend),
        device_model=device.model,
        isolation=Isolation.SHARED,
    )
    return codec.storable(made)[0]


def _case(test: str, backend: str | None, device: str) -> Case:
    return Case.of_call(SUITE, test, backend or PYTHON, device)


def sampler(backend: str | None, device: str | None) -> EndSampler:
    """What sees who else computes while a test's function is timed: as for a case of a run on that device."""
    virtual = backend_named(backend or PYTHON).virtual
    return EndSampler(Watch(usable_threads()).sources(_case("", backend, device or "cpu"), virtual=virtual))


def surroundings(record: Record) -> list[str]:
    """What others took of the machine while the function was timed, where it was enough to show."""
    outcome = record.outcome
    return [each.text for each in contended([outcome])] if isinstance(outcome, Measurement) else []


def failure(error: BaseException, backend: str | None) -> Failure:
    """What the function raised, as a result."""
    full = backend_named(backend or PYTHON).out_of_memory(error)
    message = hide_secrets()(one_line(error))
    return Failure(status=Status.OUT_OF_MEMORY if full else Status.FAILED, message=message)


def version(backend: str | None) -> str | None:
    """The version of the backend's framework, which is not imported; of Python where there is none."""
    if backend is None or backend == PYTHON:
        return python_version()
    for distribution in backend_named(backend).distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def earlier(results: Path, name: str) -> Run | None:
    """The sessions that were stored under `name`, if any.

    Raises UsageError for what is no name of a run, or where they were made on other hardware.
    """
    if not runs.NAME.fullmatch(name) or selectors.LATEST.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a run.", "Use letters, digits, dots, dashes, underscores.")
    if name not in selectors.folder_names(results):
        return None
    found = runs.read_run(results / runs.RUNS / name)
    if not same_hardware(found.info.machine, machine()):
        raise UsageError(f"The run {name!r} was made on other hardware.", "Choose another name.")
    return found


def session(name: str, policy: Policy, earlier: Run | None) -> Run:
    """A run without records yet, one process of which this session is; `earlier`: the sessions before it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    info = RunInfo(
        id=name,
        started=now,
        command=(SUITE,),
        version=__version__,
        machine=machine(),
        settings=Settings(threads=usable_threads(), allocator=Allocator.SYSTEM, isolation=Isolation.SHARED),
        policy=policy,
        seed=0,
        probes=(),
        plan=(),
        left_out=(),
        tags=commit_tag(),
        machine_id=machine_id(),
        name_hashes=name_hashes(),
        variables=tuning_variables(os.environ),
    )
    before = earlier.info if earlier else info
    rounds = 1 + max((each.round for each in earlier.records), default=-1) if earlier else 0
    head = replace(
        info,
        started=before.started,
        policy=replace(policy, rounds=rounds + 1),
        probes=before.probes,
        plan=before.plan,
        tags=dict(info.tags.items() & before.tags.items()),
    )
    return Run(info=head, records=())


def run_so_far(run: Run, records: Sequence[Record], devices: Mapping[str, Iterable[Device]]) -> Run:
    """`run` with this session's records; `devices`: target → those used."""
    plan = {case.id: case for case in (*run.info.plan, *(each.case for each in records))}
    probes = {probe.target.name: probe for probe in run.info.probes}
    versions = {each.case.target: each.framework_version for each in records}
    for name, found in devices.items():
        target = Target(name=name, backend=name, python=PurePath(sys.executable).name)
        probes[name] = Probe(target=target, version=versions[name], devices=tuple(found))
    info = replace(run.info, plan=tuple(plan.values()), probes=tuple(probes.values()))
    return Run(info=info, records=tuple(records))


def only(run: Run, case: str) -> Run:
    """`run` as if it had planned and measured one case."""
    plan = tuple(each for each in run.info.plan if each.id == case)
    records = tuple(each for each in run.records if each.case.id == case)
    return Run(info=replace(run.info, plan=plan, left_out=()), records=records)


@dataclass(frozen=True, slots=True)
class Since:
    """What became of a case; `p` is of the direction seen, None where nothing was tested."""

    verdict: Verdict
    p: float | None
    text: str


def regression_of(run: Run, name: str, results: Path) -> Since:
    """What became of the one case of `run` since the baseline `name`, or else the stored run of that name.

    Raises UnreadableInput, NotComparable.
    """
    (case,) = run.info.plan
    if name not in baselines.baseline_names(results):
        ref = runs.read_run(selectors.find_run(results, name))
        (verdict,) = compare_runs(only(ref, case.id), run).verdicts
        text = "; ".join(comparison.sentences(verdict))
        return Since(verdict.verdict, verdict.p_holm, text)
    sessions = baselines.sessions(results, name, run.info.machine)
    found = decide(sessions, digest(run), GatePolicy(metrics=METRICS[:1], confirm=False))
    finding = next(each for each in found.findings if each.case == case.id)
    text = next(each.text for each in gate.case_verdicts(found) if each.case == case.id)
    return Since(finding.verdict, finding.first.p_holm if finding.first else None, text)


def check_exists(name: str, results: Path) -> None:
    """Raises UnreadableInput or NotComparable where there is no such run or baseline for this machine."""
    if name in baselines.baseline_names(results):
        baselines.sessions(results, name, machine())
        return
    try:
        stored = selectors.find_run(results, name)
    except UnreadableInput as error:
        raise UnreadableInput(str(error), f"pytest --accelbench-save {name} stores one.") from error
    runs.read_run(stored)
