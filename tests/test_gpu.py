"""Tests of the timers and of float8 that need an NVIDIA GPU. Without one, they are skipped with a message."""

from pathlib import Path

import pytest

from benchbench.analyse.rows import MIN_LAUNCH_LEAD
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.stats import median
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import MAX_ITERATIONS, Samples, measure_steps
from benchbench.worker.program import build
from benchbench.workloads.base import Workload
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.operations.gemm import Gemm
from tests.program import accelbench, rows

pytestmark = [pytest.mark.real, pytest.mark.gpu]
SMALL = Gemm(m=256, n=256, k=256)
SPIN_CYCLES = 200_000  # a tenth of a millisecond at 2 GHz


@pytest.fixture(autouse=True)
def gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device")


def measure(work: Workload, mode: str = "eager", before: str = "") -> Samples:
    session = Torch().open("cuda:0", Dtype.FLOAT32, mode, 2)
    runner = build(Torch(), session, work, Dtype.FLOAT32)
    session.wait(runner.step())
    ahead = {"spin": lambda: session.spin(SPIN_CYCLES), "flush": session.flush, "": None}[before]
    most = 1 if ahead else MAX_ITERATIONS
    return measure_steps(runner.step, session.timer(ahead), POLICIES["quick"], most=most)


def step_s(samples: Samples) -> float:
    return median(samples.block_s) / samples.iterations


def launching(samples: Samples) -> float:
    return median([batch.enqueue_s / batch.device_s for batch in samples.batches])


def test_a_small_product_is_not_faster_with_cold_caches() -> None:
    """In both cases the device is busy while steps are launched: it spins, or it clears its cache."""
    assert step_s(measure(SMALL, before="flush")) >= step_s(measure(SMALL, before="spin"))


def test_a_tiny_product_is_launch_bound_and_a_large_one_is_not() -> None:
    assert launching(measure(SMALL)) > 1 - MIN_LAUNCH_LEAD
    assert launching(measure(Gemm(m=8192, n=8192, k=8192))) < 0.5


def test_a_graph_makes_small_kernels_less_launch_bound() -> None:
    work = ConvnetTrain().tiny()
    eager, graph = measure(work), measure(work, "cudagraph")
    assert launching(eager) > 1 - MIN_LAUNCH_LEAD
    assert launching(graph) < launching(eager)
    assert step_s(graph) < step_s(eager)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_products_in_float8_are_verified(backend: str, tmp_path: Path) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip(backend)
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip(f"{torch.cuda.get_device_name()} multiplies no float8")
    options = ("-w", "gemm,linear", "-d", "accelerator", "--dtype", "float8", "--quick", "--rounds", "1")
    accelbench("run", *options, "-b", backend, cwd=tmp_path, ACCELBENCH_WORKLOADS="")
    assert [row["status"] for row in rows(tmp_path)] == ["ok", "ok"]
