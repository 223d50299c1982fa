"""User functions: transfer to worker processes, measurement and comparison."""

import functools
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import benchbench
from benchbench.analyse.rows import rows as rows_of
from benchbench.backends import fake
from benchbench.errors import UsageError
from benchbench.launch.functions import call_named, call_of
from benchbench.launch.pool import message_of_call
from benchbench.model.case import Status, Verdict
from benchbench.model.function import Call
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.run import Run
from benchbench.worker.call import backend_of, bind_function
from tests.program import accelbench, environment, rows

BENCH = """

from benchbench.backends import fake

def fast():
    fake.sleep(1e-3)

def slow():
    fake.sleep(2e-3)

def make():
    return 3e-3, "unused"

def with_arguments(seconds, unused):
    assert unused == "unused"
    fake.sleep(seconds)

def named():
    return {"unused": "unused", "seconds": 4e-3}

def lazy():
    yield 1

loops = set()

async def coroutine():
    pass
"""
FAKE = ("-b", "fake", "--rounds", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(BENCH)
    return tmp_path


def latency_s(run: Run) -> float | None:
    (row,) = rows_of(run)
    return row.value("latency_s")


class Napping:
    """A class whose methods need their instance."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def nap(self) -> None:
        fake.sleep(self.seconds)

    def __call__(self) -> None:
        self.nap()


def transferred(function: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[Call, Callable[[], Any]]:
    """The stored call of a function, and the function that a worker would load."""
    call, path = call_of(function, arguments, **more), list(sys.path)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in call.files.items():
            Path(folder, name).write_bytes(content)
        try:
            return call, bind_function(message_of_call(call), Path(folder))
        finally:
            sys.path[:] = path


def in_module() -> str:
    return "by its name"


def test_a_function_of_a_module_is_sent_by_name(folder: Path) -> None:
    for function, name in ((math.sin, "math:sin"), (in_module, f"{__name__}:in_module")):
        call, function_found = transferred(function)
        assert function_found is function
        assert call.function.name == name
        assert not call.files


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: 7, "<lambda>"),
        (functools.partial(max, 7, 3), "builtins:max (partial)"),
        (functools.partial(in_module), f"{__name__}:in_module (partial)"),
    ],
)
def test_an_unnamed_function_is_sent_by_value(folder: Path, function: Callable[[], Any], name: str) -> None:
    call, received = transferred(function)
    assert received() == function()
    assert call.function.name.endswith(name)
    assert call.files


def test_a_bound_method_keeps_its_instance(folder: Path) -> None:
    for value in (Napping(0.25).nap, Napping(0.25)):
        call, received = transferred(value)
        assert call.function.pickled
        instance: Any = getattr(received, "__self__", received)
        assert instance.seconds == 0.25


def test_arguments_precede_the_results_of_setup(folder: Path) -> None:
    assert transferred(lambda *arguments: arguments, 1, 2)[1]() == (1, 2)
    assert transferred(lambda *arguments: arguments, 1, setup=lambda: 2)[1]() == (1, 2)
    assert transferred(lambda *arguments: arguments, 1, setup=lambda: (2, 3))[1]() == (1, 2, 3)
    assert transferred(lambda first, second: (first, second), 1, setup=lambda: {"second": 2})[1]() == (1, 2)
    assert transferred(lambda *arguments: arguments, setup=lambda: None)[1]() == ()


def with_generator() -> Callable[[], Any]:
    numbers = (number for number in range(3))
    return lambda: next(numbers)


def with_lock() -> Callable[[], Any]:
    guard = threading.Lock()
    return lambda: guard.acquire(blocking=False)


def with_large_data() -> Callable[[], Any]:
    small, data = b"1", bytes(5000)
    return lambda: (small, data)


def within_another() -> Callable[[], Any]:
    inner = with_lock()
    return lambda: (inner(),)


def on_an_instance() -> Callable[[], Any]:
    napping = Napping(0.1)
    napping.guard = threading.Lock()  # type: ignore[attr-defined]
    return napping.nap


def on_a_gpu() -> Callable[[], Any]:
    kind = type("Tensor", (), {"__module__": "torch", "is_cuda": False, "device": "xpu:0"})
    weights = {"layer": [kind()]}
    return lambda: weights


@pytest.mark.parametrize(
    ("make", "culprit", "message"),
    [
        (with_generator, "numbers", "generator"),
        (with_lock, "guard", "lock"),
        (within_another, "guard", "lock"),
        (on_an_instance, "guard", "lock"),
        (with_large_data, "data", "larger than"),
        (on_a_gpu, "weights", "on an accelerator"),
    ],
)
def test_the_error_names_the_variable_that_cannot_be_sent(make: Any, culprit: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"'{culprit}' in ") as refused:
        call_of(make(), max_bytes=4000)
    assert message in str(refused.value)
    assert "setup=make" in refused.value.hint


def test_an_argument_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(UsageError, match="'argument 2' in the arguments"):
        call_of(max, (1, threading.Lock()))


def test_without_cloudpickle_only_named_functions_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert not call_of(math.sin).files
    for function, arguments in ((lambda: 7, ()), (max, (lambda: 7, 1))):
        with pytest.raises(UsageError, match="needs cloudpickle") as refused:
            call_of(function, arguments)
        assert "cloudpickle" in refused.value.hint


def test_picklable_arguments_need_no_cloudpickle(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert transferred(math.pow, 2.0, 3.0)[1]() == 8.0
    assert transferred(Napping(0.25).__getattribute__, "seconds")[1]() == 0.25
    with pytest.raises(UsageError):
        call_of(max, (threading.Lock(), 1))


@pytest.mark.parametrize("text", ["bench.py", "bench", "nosuch.py:f", ":f", "bench.py:"])
def test_an_invalid_name_of_a_function_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        call_named(text)
    assert "file.py:function" in refused.value.hint


def test_a_file_is_named_relative_to_its_repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".git").mkdir()
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks/own.py").touch()
    monkeypatch.chdir(folder / "benchmarks")
    assert call_named("own.py:f", "make").function.name == "benchmarks/own.py:f"
    assert call_named("own.py:f", "make").setup == call_named("own.py:make").function.__class__(
        name="make", path=str(folder / "benchmarks/own.py"), qualname="make"
    )


def of_module(name: str) -> Any:
    return type("Array", (), {"__module__": name})()


def on_device(kind: int) -> Any:
    """An array of an unknown framework on a DLPack device of this type."""
    return type("Array", (), {"__dlpack_device__": lambda array: (kind, 0)})()


class Slotted:
    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("result", "backend"),
    [
        (CIRCLE, "python"),
        (of_module("torch"), "torch"),
        (of_module("jaxlib._jax"), "jax"),
        (of_module("tensorflow.python.framework.ops"), "tensorflow"),
        ({"loss": [1.0, (of_module("torch"),)]}, "torch"),
        (Slotted(of_module("torch")), "torch"),
        (functools.partial(print), "python"),
        ([1, "torch", None, {"torch": 2}], "python"),
        (on_device(1), "python"),
    ],
)
def test_the_arrays_of_the_result_select_the_backend(result: Any, backend: str) -> None:
    assert backend_of(result) == backend


def test_an_array_of_an_unknown_framework_on_a_device_is_refused() -> None:
    with pytest.raises(UsageError):
        backend_of({"result": on_device(2)})


def test_a_nap_of_fifty_milliseconds_takes_fifty_milliseconds(folder: Path) -> None:
    run = benchbench.measure(lambda: fake.sleep(0.05), backend="fake", rounds=2)
    assert latency_s(run) == pytest.approx(0.05, rel=0.02)
    assert run == benchbench.load("latest")
    assert [record.isolation for record in run.records] == ["fork", "fork"]


@pytest.mark.real
def test_function_of_no_framework_is_timed_until_it_returns(folder: Path) -> None:
    run = benchbench.measure(lambda: time.sleep(0.05), rounds=1, name="nap")
    assert [case.id for case in run.info.plan] == ["nap@python:cpu"]
    (record,) = run.records
    assert isinstance(record.outcome, Measurement)
    assert record.outcome.telemetry is not None
    assert (latency_s(run) or 0.0) >= 0.05


@pytest.mark.real
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_the_framework_of_a_real_result_is_recognised(folder: Path, backend: str) -> None:
    pytest.importorskip(backend)
    source = {
        "torch": "import torch\ndef f():\n    return {'x': [torch.ones(4)]}\n",
        "jax": "import jax.numpy as jnp\ndef f():\n    return {'x': [jnp.ones(4)]}\n",
        "tensorflow": "import tensorflow as tf\ndef f():\n    return {'x': [tf.ones(4)]}\n",
    }
    (folder / "own.py").write_text(source[backend])
    run = benchbench.measure("own.py:f", rounds=1)
    assert [case.id for case in run.info.plan] == [f"own.py:f@{backend}:cpu"]
    assert (latency_s(run) or 0.0) > 0


@pytest.mark.real
def test_the_command_line_measures_a_function(folder: Path) -> None:
    output = accelbench("time", "bench.py:fast", *FAKE, cwd=folder).stdout
    assert "bench.py:fast" in output
    (row,) = rows(folder)
    assert row["latency_s"] == pytest.approx(1e-3, rel=0.02)
    assert row["item"] == "call"
    accelbench("time", "bench.py:fast", *FAKE, cwd=folder)
    for arguments in (["compare", "latest~1", "latest"], ["history"], ["list", "runs"]):
        accelbench(*arguments, cwd=folder)
    accelbench("time", "bench:fast", *FAKE, "--isolation", "spawn", cwd=folder)
    assert rows(folder)[0]["case"] == "bench:fast@fake:cpu"
    for setup, seconds in (("make", 3e-3), ("bench.py:named", 4e-3)):
        accelbench("time", "bench.py:with_arguments", "-s", setup, *FAKE, cwd=folder)
        assert rows(folder)[0]["latency_s"] == pytest.approx(seconds, rel=0.02)


READING = """
import os
from os import environ

from benchbench.backends import fake

PACE = "BENCH_PACE"

def paced():
    fake.sleep(float(os.environ.get(PACE, "1e-3")))

def others():
    return "BENCH_MODE" in environ, os.getenv("BENCH_UNSET"), environ["HOME"], environ["OMP_NUM_THREADS"]
"""


@pytest.mark.real
def test_variables_read_by_a_function_are_reported_and_passed_on_by_name(folder: Path) -> None:
    (folder / "reading.py").write_text(READING)
    shell: Any = {"BENCH_PACE": "2e-3", "BENCH_MODE": "x", "BENCH_KEY": "y", "OMP_NUM_THREADS": "7"}
    errors = accelbench("time", "reading.py:paced", *FAKE, cwd=folder, **shell).stderr
    (line,) = (line for line in errors.splitlines() if "BENCH_" in line)
    assert "--env BENCH_MODE --env BENCH_PACE" in line
    assert "BENCH_KEY" not in line
    assert "BENCH_UNSET" not in line
    assert rows(folder)[0]["latency_s"] == pytest.approx(1e-3, rel=0.02)
    passed = ("--env", "BENCH_PACE", "--env", "BENCH_MODE")
    errors = accelbench("time", "reading.py:paced", *FAKE, *passed, cwd=folder, **shell).stderr
    assert "BENCH_MODE" not in errors
    assert rows(folder)[0]["latency_s"] == pytest.approx(2e-3, rel=0.02)


@pytest.mark.parametrize("name", ["BENCH_UNSET", "OMP_NUM_THREADS", "A=b"])
def test_a_variable_that_cannot_be_passed_on_is_refused(folder: Path, name: str) -> None:
    process = accelbench("time", "bench.py:fast", *FAKE, "--env", name, cwd=folder, code=2)
    assert name in process.stderr
    assert "hint: " in process.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench.py:fst",), "Did you mean 'fast'?"),
        (("bench.py:loops",), "is not a function but a set"),
        (("nosuch:f",), "There is no module 'nosuch'"),
        (("bench.py:lazy",), "list(...)"),
        (("bench.py:coroutine",), "asyncio.run(...)"),
        (("bench.py:fast", "-s", "nosuch"), "has no 'nosuch'"),
        (("bench.py:fast", "-b", "troch"), "Did you mean 'torch'?"),
        (("bench.py:fast", "-b", "fake", "-d", "cuda:9"), "no device 'cuda:9'"),
    ],
)
def test_an_unmeasurable_function_is_an_error_and_nothing_is_stored(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in accelbench("time", *arguments, cwd=folder, code=2).stderr
    assert not (folder / "results").exists()


def test_a_function_that_raises_ends_with_4(folder: Path) -> None:
    (folder / "bench.py").write_text("def broken():\n    raise ValueError\n")
    accelbench("time", "bench.py:broken", "--rounds", "1", cwd=folder, code=4)
    assert rows(folder)[0]["status"] == "failed"


class Reason(BaseException):
    """An exception of a user's program."""


@pytest.mark.real
@pytest.mark.parametrize("error", [Reason("a reason"), KeyboardInterrupt("a reason"), SystemExit("a reason")])
def test_any_exception_of_a_function_is_the_message_of_its_record(folder: Path, error: BaseException) -> None:
    def fail() -> None:
        raise error

    run = benchbench.measure(fail, backend="fake", rounds=1)
    (failure,) = [record.outcome for record in run.records]
    assert isinstance(failure, Failure)
    assert failure.status is Status.FAILED
    assert failure.message == f"{type(error).__name__}: a reason"


@pytest.mark.real
def test_two_functions_are_interleaved_and_compared(folder: Path) -> None:
    output = accelbench("time", "bench.py:fast", "bench.py:slow", "-b", "fake", cwd=folder).stdout
    assert "interleaved: each round has a process of each side" in output
    assert "bench.py:fast@fake:cpu → bench.py:slow@fake:cpu" in output
    assert "1 slower" in output
    comparison = benchbench.measure_ab("bench.py:slow", "bench.py:slow", backend="fake")
    assert [verdict.verdict for verdict in comparison.verdicts] == [Verdict.SAME]


@pytest.mark.real
def test_a_stored_function_is_never_called(folder: Path) -> None:
    accelbench("time", "bench.py:fast", *FAKE, cwd=folder)
    (folder / "bench.py").write_text("open('called', 'w')\ndef fast(): pass\n")
    other_folder = folder / "other"
    other_folder.mkdir()
    for arguments in (["report"], ["list", "runs"], ["validate"]):
        accelbench(*arguments, cwd=folder)
    accelbench("merge", str(folder / "results"), cwd=other_folder)
    (ended,) = (folder / "results").rglob("end.json")
    ended.unlink()
    refused = accelbench("run", "--resume", "latest", cwd=folder, code=2).stderr
    assert "it called functions, which are not stored" in refused
    assert not [*folder.rglob("called")]


@pytest.mark.real
def test_a_check_judges_stored_functions_without_calling_them(folder: Path) -> None:
    accelbench("time", "bench.py:fast", "-b", "fake", cwd=folder)
    accelbench("baseline", "set", "main", "--accept", cwd=folder)
    refused = accelbench("check", "--baseline", "main", cwd=folder, code=2).stderr
    assert "has functions of yours" in refused
    itself = accelbench("check", "latest", "--baseline", "main", cwd=folder, code=11).stderr
    assert "check latest --baseline main" in itself
    slower = BENCH.replace("1e-3", "2.0e-3")  # of another length, to invalidate the bytecode
    (folder / "bench.py").write_text(slower)
    accelbench("time", "bench.py:fast", "-b", "fake", cwd=folder)
    process = accelbench("check", "latest", "--baseline", "main", cwd=folder, code=12)
    assert "a stored run has no functions" in process.stdout + process.stderr
    assert "suite" not in process.stderr


SCRIPT = """
import benchbench
from benchbench.backends import fake

def nap():
    fake.sleep(2e-3)

{guard}print(len(benchbench.measure(nap, backend="fake", rounds=1).records))
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("guard", "text"), [("if __name__ == '__main__':\n    ", "1"), ("", "if __name__ == '__main__':")]
)
def test_a_function_of_a_script_is_found_in_its_file(folder: Path, guard: str, text: str) -> None:
    (folder / "script.py").write_text(SCRIPT.format(guard=guard))
    process = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert (process.returncode == 0) == bool(guard)
    assert text in process.stdout + process.stderr
    if guard:
        assert rows(folder)[0]["case"] == "script.py:nap@fake:cpu"
