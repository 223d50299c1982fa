"""Overhead of measuring, reported by pytest-benchmark in groups to compare."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from benchbench.backends.base import HostTimer
from benchbench.machine.sampler import Watch, take
from benchbench.model.measurement import Batch
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import sample
from tests.factories import a_case

ITERATIONS = 10_000


def nothing() -> None:
    return None


def bare_loop() -> None:
    for _ in range(ITERATIONS):
        nothing()


@pytest.mark.benchmark(group="10,000 calls of an empty function")
def test_a_bare_loop(benchmark: Any) -> None:
    benchmark(bare_loop)


@pytest.mark.benchmark(group="10,000 calls of an empty function")
def test_a_timed_block(benchmark: Any) -> None:
    timer = HostTimer(lambda _: None)
    (seconds,) = benchmark(timer.blocks, nothing, ITERATIONS, 1)
    assert seconds > 0


@pytest.mark.benchmark(group="30 blocks of virtual time")
def test_deciding_when_to_stop(benchmark: Any) -> None:
    class Virtual:
        batch_s = 0.0
        batches: Sequence[Batch] = ()
        clock = 0.0

        def now(self) -> float:
            return self.clock

        def no_op(self) -> None:
            pass

        def blocks(self, step: Any, iterations: int, count: int) -> list[float]:
            self.clock += 0.02 * count
            return [0.02] * count

    def run() -> int:
        samples, reason = sample(nothing, Virtual(), POLICIES["default"], 1, 0.02)
        assert reason == "precision"
        return len(samples)

    assert benchmark(run) == 30


@pytest.mark.benchmark(group="a sample of the machine")
def test_a_sample(benchmark: Any) -> None:
    sources = Watch(1).sources(a_case())
    assert benchmark(take, sources).at_s > 0


BARE_TYPER = """
import sys
import typer
app = typer.Typer()
@app.command()
def main(name: str = "x") -> None:
    "A command."
sys.argv[1:] = ["--help"]
app()
"""


@pytest.mark.real
@pytest.mark.benchmark(group="start-up of --help", max_time=2.0, min_rounds=5)
@pytest.mark.parametrize(
    "program",
    [BARE_TYPER, "import sys; sys.argv[1:] = ['--help']\nfrom benchbench.cli import main; main()"],
    ids=["bare typer", "accelbench"],
)
def test_start_up(benchmark: Any, program: str) -> None:
    process = benchmark(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 0
    assert "Usage" in process.stdout
