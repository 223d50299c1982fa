"""Pytest plugin: the fixture `accelbench` measures a function, stores the result, and can fail the test.

Every pytest session with the plugin installed loads this module, so all imports except pytest are local.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchbench.model.device import Device
    from benchbench.model.measurement import Failure, Measurement
    from benchbench.model.run import Policy, Record, Run
    from benchbench.pytest_plugin.session import SessionWriter

FIXTURE = "accelbench"
OUTCOMES = (pytest.skip.Exception, pytest.fail.Exception, pytest.xfail.Exception, pytest.exit.Exception)
CANNOT_WRITE = 6  # docs/cli.md


@dataclass(slots=True, kw_only=True)
class State:
    """Measurements of one pytest session."""

    results: Path
    baseline: str
    run: Run
    earlier: Run | None
    tests: int = 1  # number of tests that are judged together
    records: list[Record] = field(default_factory=list)
    devices: dict[str, dict[str, Device]] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    writer: SessionWriter | None = None  # set by the first record
    problem: str = ""


STATE = pytest.StashKey[State]()
TESTS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of docs/pytest.md."""
    group = parser.getgroup("accelbench", "measuring functions with the fixture accelbench")
    results = os.environ.get("ACCELBENCH_RESULTS", "results")
    group.addoption("--accelbench-save", metavar="NAME", help="Name the run; each session is a round.")
    group.addoption("--accelbench-check", metavar="NAME", help="Fail tests slower than in the run NAME.")
    group.addoption(
        "--accelbench-results", metavar="DIR", default=results, help="The folder that keeps runs."
    )
    group.addoption(
        "--accelbench-policy",
        default="quick",
        choices=("brief", "quick", "default", "rigorous"),
        help="How long.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Report invalid options before any test runs."""
    check, save = config.getoption("--accelbench-check"), config.getoption("--accelbench-save")
    if check and config.getoption("dist", "no") != "no":
        raise pytest.UsageError("--accelbench-check measures, and parallel tests disturb it: leave -n out")
    if (check or save) and not _is_xdist_worker(config):
        state(config)


def _is_xdist_worker(config: pytest.Config) -> bool:
    """True in one of several workers of pytest-xdist."""
    return hasattr(config, "workerinput")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests that are judged together."""
    users = [item for item in session.items if FIXTURE in getattr(item, "fixturenames", ())]
    session.config.stash[TESTS] = max(1, len(users))


@pytest.fixture
def accelbench(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`accelbench(function, *args, backend=None, device=None)`: measure a function and return its result.

    After each call, the fixture waits for the devices of the result. `backend`: `torch`, `tensorflow` or
    `jax`, by default the framework of the result's arrays; `python` waits for nothing. `device`: such as
    `cpu` or `cuda:0`, by default the result's device. One call per test.
    """
    calls: list[str] = []

    def bench(
        function: Callable[..., Any], *args: Any, backend: str | None = None, device: str | None = None
    ) -> Any:
        __tracebackhide__ = True
        if calls:
            pytest.fail("accelbench measures one function a test: split or parametrize it", pytrace=False)
        calls.append(request.node.nodeid)
        if _is_xdist_worker(request.config):  # times of parallel tests are not usable
            return function(*args)
        return _bench(request, partial(function, *args), backend, device)

    return bench


def _bench(
    request: pytest.FixtureRequest, function: Callable[[], Any], backend: str | None, device: str | None
) -> Any:
    __tracebackhide__ = True
    from benchbench.backends.python import host
    from benchbench.errors import Unsupported, UsageError
    from benchbench.model.note import NoteKind, note
    from benchbench.pytest_plugin import session as testruns
    from benchbench.worker import call

    session_state, test = state(request.config), request.node.nodeid
    sampler = testruns.sampler(backend, device)
    try:
        measured_call = call.measure_call(
            function,
            backend,
            device,
            session_state.run.info.policy,
            notes=[note(NoteKind.SHARED_PROCESS)],
            mark=lambda part: sampler.turn() if part == "timed" else nullcontext(),
        )
    except (UsageError, Unsupported, KeyboardInterrupt, *OUTCOMES):
        raise
    except BaseException as error:
        record_test(session_state, test, backend, host(device), testruns.failure(error, backend))
        raise
    outcome = sampler.with_telemetry(measured_call.measurement)
    judge_test(
        session_state, record_test(session_state, test, measured_call.backend, measured_call.device, outcome)
    )
    return measured_call.output


def state(config: pytest.Config) -> State:
    """Return the session's state, creating it on first use. Raises pytest.UsageError."""
    from benchbench.errors import AccelbenchError

    if STATE not in config.stash:
        try:
            config.stash[STATE] = _new_state(config)
        except AccelbenchError as error:
            raise pytest.UsageError(f"accelbench: {error} {error.hint}".strip()) from error
    session_state = config.stash[STATE]
    session_state.tests = config.stash.get(TESTS, 1)
    return session_state


def _new_state(config: pytest.Config) -> State:
    from benchbench.errors import UsageError
    from benchbench.pytest_plugin import session as testruns
    from benchbench.store import disk
    from benchbench.timing.policy import POLICIES

    results = config.invocation_params.dir / str(config.getoption("--accelbench-results"))
    name, baseline = config.getoption("--accelbench-save"), config.getoption("--accelbench-check") or ""
    earlier = testruns.earlier(results, name) if name else None
    if baseline == name:
        raise UsageError(f"{name!r} cannot be both saved and checked against.", "Choose another name.")
    if baseline:
        testruns.check_exists(baseline, results)
    policy: Policy = POLICIES[str(config.getoption("--accelbench-policy"))]
    run = testruns.session(name or disk.new_id(), policy, earlier)
    return State(results=results, baseline=baseline, run=run, earlier=earlier)


def record_test(
    session_state: State, test: str, backend: str | None, device: Device, outcome: Measurement | Failure
) -> Record:
    """Create and store the record of a test before the next test begins."""
    from benchbench.pytest_plugin import session as testruns

    _open(session_state)
    position = session_state.run.info.policy.rounds - 1, len(session_state.records)
    record = testruns.record(test, backend, device, outcome, position)
    session_state.records.append(record)
    session_state.devices.setdefault(record.case.target, {})[device.name] = device
    if session_state.writer:
        info = testruns.run_so_far(session_state.run, session_state.records, _devices(session_state)).info
        with _storing(session_state):
            session_state.writer.append(info, record)
    return record


def _open(session_state: State) -> None:
    """Start storing the session, as the next round of the stored run of that name."""
    from benchbench.pytest_plugin.session import SessionWriter

    if session_state.writer or session_state.problem:
        return
    with _storing(session_state):
        session_state.writer = SessionWriter(
            session_state.results, session_state.run.info.id, session_state.run.info.policy
        )
        session_state.run, session_state.earlier = session_state.writer.run, session_state.writer.earlier


@contextmanager
def _storing(session_state: State) -> Iterator[None]:
    """Keep an error of storing for the end of the session, so that tests continue."""
    from benchbench.errors import AccelbenchError

    try:
        yield
    except AccelbenchError as error:
        session_state.problem = session_state.problem or f"not stored: {error}. {error.hint}"


def judge_test(session_state: State, record: Record) -> None:
    """Fail the test if it became slower, with Bonferroni's correction for all tests of the session."""
    __tracebackhide__ = True
    if not session_state.baseline:
        return
    from benchbench.judging.comparison import ALPHA
    from benchbench.model.case import Verdict
    from benchbench.pytest_plugin import session as testruns

    earlier_records = session_state.earlier.records if session_state.earlier else ()
    run = testruns.only(
        testruns.run_so_far(session_state.run, [*earlier_records, record], _devices(session_state)),
        record.case.id,
    )
    change = testruns.regression_of(run, session_state.baseline, session_state.results)
    if change.verdict is Verdict.SLOWER and change.p is not None and change.p * session_state.tests < ALPHA:
        pytest.fail(f"slower than in {session_state.baseline}: {change.text}", pytrace=False)
    if change.verdict not in (Verdict.SAME, Verdict.FASTER):
        session_state.undecided.append(f"{record.case.id}: {change.verdict}: {change.text}")


def _devices(session_state: State) -> dict[str, tuple[Device, ...]]:
    return {target: tuple(devices.values()) for target, devices in session_state.devices.items()}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Finish the stored run."""
    session_state = session.config.stash.get(STATE, None)
    if session_state is None or not session_state.records:
        return
    if session_state.writer:
        with _storing(session_state):
            session_state.writer.end()
    if session_state.problem:
        session.exitstatus = CANNOT_WRITE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a line per measurement, the tests that could not be judged, and the name of the run."""
    session_state = config.stash.get(STATE, None)
    if session_state is None or not session_state.records:
        return
    from benchbench.format import visible
    from benchbench.pytest_plugin.session import surroundings
    from benchbench.running.observer import line
    from benchbench.store import selectors

    terminalreporter.write_sep("=", "accelbench")
    for record in session_state.records:
        terminalreporter.write_line(visible(line(record)))
        for text in surroundings(record):
            terminalreporter.write_line(visible(f"  {text}"))
    for text in session_state.undecided:
        terminalreporter.write_line(visible(f"not judged against {session_state.baseline}: {text}"))
    name = session_state.run.info.id
    results_option = selectors.results_option(Path(str(config.getoption("--accelbench-results"))))
    rounds = session_state.run.info.policy.rounds
    summary = f"run {name}, round {rounds}; next: accelbench report {name}{results_option}"
    terminalreporter.write_line(visible(session_state.problem or summary))
