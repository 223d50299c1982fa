"""The pytest plugin: the fixture `accelbench` measures a function, stores it, and can fail its test.

Every pytest session that finds the plugin loads this, so all but pytest is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchbench.model.device import Device
    from benchbench.model.measurement import Failure, Measurement
    from benchbench.model.record import Record
    from benchbench.model.run import Policy, Run
    from benchbench.pytest_plugin.session import SessionWriter

FIXTURE = "accelbench"
OUTCOMES = (pytest.skip.Exception, pytest.fail.Exception, pytest.xfail.Exception, pytest.exit.Exception)
CANNOT_WRITE = 6  # docs/cli.md


@dataclass(slots=True, kw_only=True)
class State:
    """What one pytest session has measured."""

    results: Path
    baseline: str
    run: Run
    earlier: Run | None
    tests: int = 1  # that are judged together
    records: list[Record] = field(default_factory=list)
    devices: dict[str, dict[str, Device]] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    writer: SessionWriter | None = None  # from the first record on
    problem: str = ""


STATE = pytest.StashKey[State]()
TESTS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of docs/pytest.md."""
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
    """What cannot work is told before a test runs."""
    check, save = config.getoption("--accelbench-check"), config.getoption("--accelbench-save")
    if check and config.getoption("dist", "no") != "no":
        raise pytest.UsageError("--accelbench-check measures, and parallel tests disturb it: leave -n out")
    if (check or save) and not _beside_others(config):
        state(config)


def _beside_others(config: pytest.Config) -> bool:
    """Whether this is one of several workers of pytest-xdist."""
    return hasattr(config, "workerinput")


def pytest_collection_finish(session: pytest.Session) -> None:
    """How many tests are judged together."""
    users = [item for item in session.items if FIXTURE in getattr(item, "fixturenames", ())]
    session.config.stash[TESTS] = max(1, len(users))


@pytest.fixture
def accelbench(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`accelbench(function, *args, backend=None, device=None)`: what the function returns, and measured.

    The devices that the result is on are waited for after each call. `backend`: `torch`, `tensorflow` or
    `jax`, by default the one of the arrays in the result; `python` waits for nothing. `device`: as in `cpu`,
    `cuda:0`, by default the one that the result is on. Once a test.
    """
    calls: list[str] = []

    def bench(
        function: Callable[..., Any], *args: Any, backend: str | None = None, device: str | None = None
    ) -> Any:
        __tracebackhide__ = True
        if calls:
            pytest.fail("accelbench measures one function a test: split or parametrize it", pytrace=False)
        calls.append(request.node.nodeid)
        if _beside_others(request.config):  # a time taken there is no time
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

    now, test = state(request.config), request.node.nodeid
    sampler = testruns.sampler(backend, device)
    try:
        made = call.measure_call(
            function,
            backend,
            device,
            now.run.info.policy,
            notes=[note(NoteKind.SHARED_PROCESS)],
            mark=sampler.mark,
        )
    except (UsageError, Unsupported, KeyboardInterrupt, *OUTCOMES):
        raise
    except BaseException as error:
        record_test(now, test, backend, host(device), testruns.failure(error, backend))
        raise
    outcome = sampler.seen_in(made.measurement)
    judge_test(now, record_test(now, test, made.backend, made.device, outcome))
    return made.output


def state(config: pytest.Config) -> State:
    """Made when it is first needed. Raises pytest.UsageError."""
    from benchbench.errors import AccelbenchError

    if STATE not in config.stash:
        try:
            config.stash[STATE] = _new_state(config)
        except AccelbenchError as error:
            raise pytest.UsageError(f"accelbench: {error} {error.hint}".strip()) from error
    found = config.stash[STATE]
    found.tests = config.stash.get(TESTS, 1)
    return found


def _new_state(config: pytest.Config) -> State:
    from benchbench.errors import UsageError
    from benchbench.pytest_plugin import session as testruns
    from benchbench.store import naming
    from benchbench.timing.policy import POLICIES

    results = config.invocation_params.dir / str(config.getoption("--accelbench-results"))
    name, baseline = config.getoption("--accelbench-save"), config.getoption("--accelbench-check") or ""
    earlier = testruns.earlier(results, name) if name else None
    if baseline == name:
        raise UsageError(f"{name!r} cannot be both saved and checked against.", "Choose another name.")
    if baseline:
        testruns.check_exists(baseline, results)
    policy: Policy = POLICIES[str(config.getoption("--accelbench-policy"))]
    run = testruns.session(name or naming.new_id(), policy, earlier)
    return State(results=results, baseline=baseline, run=run, earlier=earlier)


def record_test(
    now: State, test: str, backend: str | None, device: Device, outcome: Measurement | Failure
) -> Record:
    """The record of a test, stored before the next test begins."""
    from benchbench.pytest_plugin import session as testruns

    _open(now)
    place = now.run.info.policy.rounds - 1, len(now.records)
    record = testruns.record(test, backend, device, outcome, place)
    now.records.append(record)
    now.devices.setdefault(record.case.target, {})[device.name] = device
    if now.writer:
        info = testruns.run_so_far(now.run, now.records, _devices(now)).info
        with _storing(now):
            now.writer.append(info, record)
    return record


def _open(now: State) -> None:
    """Begin to store the session; it is the round after those of its name that are stored by now."""
    from benchbench.pytest_plugin.session import SessionWriter

    if now.writer or now.problem:
        return
    with _storing(now):
        now.writer = SessionWriter(now.results, now.run.info.id, now.run.info.policy)
        now.run, now.earlier = now.writer.run, now.writer.earlier


@contextmanager
def _storing(now: State) -> Iterator[None]:
    """What cannot be stored is told at the end: the tests go on."""
    from benchbench.errors import AccelbenchError

    try:
        yield
    except AccelbenchError as error:
        now.problem = now.problem or f"not stored: {error}. {error.hint}"


def judge_test(now: State, record: Record) -> None:
    """Fail the test where it became slower, with Bonferroni's correction for all tests of the session."""
    __tracebackhide__ = True
    if not now.baseline:
        return
    from benchbench.judging.comparison import ALPHA
    from benchbench.model.status import Verdict
    from benchbench.pytest_plugin import session as testruns

    before = now.earlier.records if now.earlier else ()
    run = testruns.only(testruns.run_so_far(now.run, [*before, record], _devices(now)), record.case.id)
    since = testruns.regression_of(run, now.baseline, now.results)
    if since.verdict is Verdict.SLOWER and since.p is not None and since.p * now.tests < ALPHA:
        pytest.fail(f"slower than in {now.baseline}: {since.text}", pytrace=False)
    if since.verdict not in (Verdict.SAME, Verdict.FASTER):
        now.undecided.append(f"{record.case.id}: {since.verdict}: {since.text}")


def _devices(now: State) -> dict[str, tuple[Device, ...]]:
    return {target: tuple(found.values()) for target, found in now.devices.items()}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the run, whose records are stored already."""
    now = session.config.stash.get(STATE, None)
    if now is None or not now.records:
        return
    if now.writer:
        with _storing(now):
            now.writer.end()
    if now.problem:
        session.exitstatus = CANNOT_WRITE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A line per measurement, what could not be judged, and where it is stored."""
    now = config.stash.get(STATE, None)
    if now is None or not now.records:
        return
    from benchbench.format import visible
    from benchbench.pytest_plugin.session import surroundings
    from benchbench.running.observer import line
    from benchbench.store import selectors

    terminalreporter.write_sep("=", "accelbench")
    for record in now.records:
        terminalreporter.write_line(visible(line(record)))
        for text in surroundings(record):
            terminalreporter.write_line(visible(f"  {text}"))
    for text in now.undecided:
        terminalreporter.write_line(visible(f"not judged against {now.baseline}: {text}"))
    name = now.run.info.id
    where = selectors.results_option(Path(str(config.getoption("--accelbench-results"))))
    stored = f"run {name}, round {now.run.info.policy.rounds}; next: accelbench report {name}{where}"
    terminalreporter.write_line(visible(now.problem or stored))
