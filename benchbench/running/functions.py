"""Measurement of the user's functions: one as a run, or two interleaved.

Each round runs in a new process, which imports the function again. Before the first round, a worker calls the
function once to find out which framework computes its result, since the parent imports no framework.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchbench.backends.base import backend_class
from benchbench.errors import UnreadableInput, UsageError
from benchbench.launch.functions import missing_variables
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode, no_code
from benchbench.launch.transport import Answer
from benchbench.machine.variables import worker_environment
from benchbench.model.case import Case, Status
from benchbench.model.device import Probe, Target
from benchbench.model.function import FUNCTIONS, PYTHON, Agreement, Call
from benchbench.model.run import Partner, Run, RunInfo
from benchbench.plan.cases import Plan
from benchbench.registry import DRAWN
from benchbench.running.measure import Measurer, Side, measuring
from benchbench.running.observer import RunObserver
from benchbench.running.recording import run_head
from benchbench.running.request import Terms
from benchbench.store import runs

BACKEND_HINT = "Wait inside the function, and name the backend python, which waits for nothing."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRequest:
    """A function to measure. By default, backend and device are those of its first call's result.

    `variables`: names of further variables of the shell to pass to the function's process.
    """

    call: Call
    backend: str | None = None
    device: str | None = None
    variables: tuple[str, ...] = ()

    @property
    def code(self) -> UserCode:
        """The user code for the workers: only the variables, no workload."""
        return dataclasses.replace(no_code(), variables=self.variables)


def measure_function(request: FunctionRequest, terms: Terms, results: Path, observer: RunObserver) -> Run:
    """Measure a function and store it as a run of one case.

    Raises UsageError for a function that cannot be found or returns before its work is done, CannotWrite.
    """
    with _measuring([request], terms, results, observer) as (_, heads, measurer):
        measurer.record(heads)
    return runs.read_run(results / runs.RUNS / heads[0].id)


def measure_functions(
    requests: tuple[FunctionRequest, FunctionRequest], terms: Terms, results: Path, observer: RunObserver
) -> tuple[Run, Run]:
    """Measure two functions interleaved and store them as runs that name each other as partner.

    Raises UsageError, CannotWrite, as `measure_function`.
    """
    with _measuring(requests, terms, results, observer) as ((first, second), (a, b), measurer):
        partner_of_a = Partner(label=first.workload, run=b.id, cases={first.id: second.id})
        partner_of_b = Partner(label=second.workload, run=a.id, cases={second.id: first.id})
        measurer.record(
            [dataclasses.replace(a, partner=partner_of_a), dataclasses.replace(b, partner=partner_of_b)]
        )
    return runs.read_run(results / runs.RUNS / a.id), runs.read_run(results / runs.RUNS / b.id)


def compare_results(
    requests: tuple[FunctionRequest, FunctionRequest], terms: Terms, observer: RunObserver
) -> Agreement:
    """Call both functions with the same inputs and compare their results. Raises UsageError."""
    observer.stage("comparing the results")
    first, second = requests
    python = Target(name=PYTHON, backend=PYTHON, python=sys.executable)
    with WorkerPool([python], terms.settings, sys.executable, first.code) as pool:
        answer = pool.compare_calls(first.call, second.call)
    if answer.reply is None:
        return Agreement(equal=None, reason=answer.message or "the process ended")
    if "agreement" in answer.reply:
        try:
            return msgspec.convert(answer.reply["agreement"], Agreement)
        except msgspec.ValidationError as error:
            raise UnreadableInput(f"The worker's answer cannot be read: {error}.") from error
    if "refused" in answer.reply:
        raise UsageError(str(answer.reply["refused"]), str(answer.reply.get("hint", "")))
    return Agreement(equal=None, reason=str(answer.outcome.get("message", "the functions cannot be called")))


@contextmanager
def _measuring(
    requests: Sequence[FunctionRequest], terms: Terms, results: Path, observer: RunObserver
) -> Iterator[tuple[list[Case], list[RunInfo], Measurer]]:
    """Yield the case of each function, the head of each run, and the measurer for both."""
    if DRAWN in os.environ:
        hint = "Put the call under `if __name__ == '__main__':`."
        raise UsageError("A function is measured while its file is imported to find it.", hint)
    for line in dict.fromkeys(_missing_variables(request, terms) for request in requests):
        if line:
            observer.note(line)
    cases = _planned_cases(requests, terms, observer)
    sides = [
        Side(
            targets=[Target(name=case.target, backend=case.backend, python=sys.executable)],
            settings=terms.settings,
            code=request.code,
            calls={case.workload: request.call},
        )
        for case, request in zip(cases, requests, strict=True)
    ]
    with measuring(sides, terms.wait_s, results, observer) as measurer:
        probes = [_ready(probe) for (probe,) in measurer.probe(terms.policy.rounds - 1)]
        heads: list[RunInfo] = []
        for case, probe in zip(cases, probes, strict=True):
            run_terms = dataclasses.replace(terms, seed=heads[0].seed) if heads else terms
            heads.append(run_head([probe], Plan((case,), ()), run_terms))
        yield cases, heads, measurer


def _missing_variables(request: FunctionRequest, terms: Terms) -> str:
    passed = {name: os.environ[name] for name in request.variables}
    worker = worker_environment(terms.settings, passed, os.environ)
    return missing_variables(request.call, worker, os.environ)


def _planned_cases(requests: Sequence[FunctionRequest], terms: Terms, observer: RunObserver) -> list[Case]:
    """The case of each function. Raises UsageError for a function that cannot be measured."""
    for request in requests:
        if request.backend:
            backend_class(request.backend)
    python = Target(name=PYTHON, backend=PYTHON, python=sys.executable)
    with WorkerPool([python], terms.settings, sys.executable, requests[0].code) as pool:
        return [
            _case(request, pool.inspect_call(request.call, request.backend, request.device), observer)
            for request in requests
        ]


class _FirstCall(msgspec.Struct):
    """A worker's reply after the first call: the backend and device of the function's result."""

    backend: str
    device: str


class _Refusal(msgspec.Struct):
    """A worker's reply for a function that cannot be measured."""

    refused: str
    hint: str


def _case(request: FunctionRequest, answer: Answer, observer: RunObserver) -> Case:
    """The function's case, with the backend and device of the first call's result.

    If the first call failed, the request's are used, and the rounds record the failure. Raises UsageError.
    """
    name = request.call.function.name
    first_call = _FirstCall(backend=request.backend or PYTHON, device=request.device or "cpu")
    if answer.outcome.get("status") == Status.UNSUPPORTED:
        raise UsageError(f"{name}: {answer.outcome.get('message')}.", BACKEND_HINT)
    if answer.reply is not None and "outcome" not in answer.reply:
        first_call = _read(answer)
        if request.backend is None:
            observer.note(f"{name}: {_description(first_call)}")
    return Case.of_call(FUNCTIONS, name, first_call.backend, first_call.device)


def _read(answer: Answer) -> _FirstCall:
    """Raises UsageError for a function that the worker refused, UnreadableInput."""
    try:
        if "refused" not in (answer.reply or {}):
            return msgspec.convert(answer.reply, _FirstCall)
        refusal = msgspec.convert(answer.reply, _Refusal)
    except msgspec.ValidationError as error:
        raise UnreadableInput(f"The worker's answer cannot be read: {error}.") from error
    raise UsageError(refusal.refused, refusal.hint)


def _description(first_call: _FirstCall) -> str:
    if first_call.backend == PYTHON:
        return "the result belongs to no framework, so a call ends when it returns"
    return f"the result belongs to {first_call.backend}, so each call waits for {first_call.device}"


def _ready(probe: Probe) -> Probe:
    """Raises UsageError for a backend that cannot be imported here."""
    if probe.status != "ready":
        raise UsageError(f"{probe.target.name}: {probe.reason}", probe.remedy)
    return probe
