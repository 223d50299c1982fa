"""CUDA graphs without a GPU: refused cases, peak memory, notes, waiting, and launch-bound rounds."""

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchbench.analyse.rows import launch_notes, launch_share, rows
from benchbench.backends.base import Session
from benchbench.backends.torch import CudaSession
from benchbench.model.case import Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.model.measurement import Batch
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from benchbench.plan.cases import support_obstacle
from benchbench.timing.sampling import Samples
from benchbench.worker.after_timing import SPIN_CYCLES, waits_in_step
from benchbench.worker.program import Runner
from benchbench.workloads import _optimizers
from benchbench.workloads._optimizers import OPTIMIZERS
from tests.factories import a_case, a_measurement, a_probe, a_record, a_run
from tests.tiny import EVERY

GPU = Device(name="cuda:0", device_class=DeviceClass.ACCELERATOR, model="Example GPU")


def refusal(workload: str, mode: str, placement: Placement | None = None, **params: Any) -> str:
    case = a_case(
        workload=workload, params=params, phase=Phase.TRAIN, mode=mode, device="cuda:0",
        placement=placement or ONE_DEVICE,
    )  # fmt: skip
    probe = a_probe(devices=(GPU, dataclasses.replace(GPU, name="cuda:1")))
    obstacle = support_obstacle(case, EVERY[workload], probe, GPU)
    return obstacle.reason if obstacle else ""


@pytest.mark.parametrize(
    "strategy", [Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL, Strategy.PIPELINE]
)
def test_a_graph_of_several_devices_is_not_planned(strategy: Strategy) -> None:
    two = Placement(devices=2, strategy=strategy)
    assert "eleven eager steps" in refusal("gpt2_train", "cudagraph", two, batch=8)
    assert not refusal("gpt2_train", "eager", two, batch=8)


@pytest.mark.parametrize(
    ("workload", "mode", "params", "refused"),
    [
        ("convnet_train", "reduce-overhead", {}, False),
        ("convnet_train", "reduce-overhead", {"accumulate": 2}, True),
        ("convnet_train", "cudagraph", {"accumulate": 2}, False),
        ("convnet_train", "compile", {"accumulate": 2}, False),
        ("dcgan_train", "reduce-overhead", {}, True),  # two losses
        ("dcgan_train", "cudagraph", {}, False),
    ],
)
def test_inductor_graphs_are_planned_for_one_backward_pass_only(
    workload: str, mode: str, params: dict[str, Any], refused: bool
) -> None:
    assert ("several backward passes" in refusal(workload, mode, **params)) == refused


@pytest.mark.real
def test_skipped_inductor_graphs_are_counted_if_graphs_were_requested() -> None:
    pytest.importorskip("torch")
    from torch._dynamo.utils import counters

    before = counters["inductor"]["cudagraph_skips"]
    graphs, compiled = (CudaSession("meta", Dtype.FLOAT32, mode) for mode in ("reduce-overhead", "compile"))
    counters["inductor"]["cudagraph_skips"] += 1
    try:
        assert graphs.skipped_graphs() == before + 1
        assert compiled.skipped_graphs() is None
    finally:
        counters["inductor"]["cudagraph_skips"] = before


class Queue:
    """A device with a queue: it takes `step_s` for a step, and the host takes `launch_s` to launch one."""

    spins = True

    def __init__(self, step_s: float, launch_s: float, waits: bool) -> None:
        self.now_s = self.free_s = 0.0
        self._step_s, self._launch_s, self._waits = step_s, launch_s, waits

    def clock(self) -> float:
        return self.now_s

    def spin(self, cycles: int) -> None:
        self.free_s = max(self.free_s, self.now_s) + cycles / 1.5e9

    def wait(self, output: Any) -> None:
        self.now_s = max(self.now_s, self.free_s)

    def timer(self) -> Any:
        return SimpleNamespace(blocks=lambda step, iterations, count: [SPIN_CYCLES / 1.5e9] * count)

    def step(self) -> None:
        self.now_s += self._launch_s
        self.free_s = max(self.free_s, self.now_s) + self._step_s
        if self._waits:
            self.wait(None)


@pytest.mark.parametrize("step_s", [1e-5, 1e-3, 0.3])
@pytest.mark.parametrize(("launching", "waits"), [(0.1, False), (1.0, False), (0.1, True), (1.0, True)])
def test_waiting_for_the_device_is_not_slow_launching(step_s: float, launching: float, waits: bool) -> None:
    queue = Queue(step_s, launching * step_s, waits)
    samples = cast(Samples, SimpleNamespace(block_s=(2 * step_s,) * 5, iterations=2))
    runner, session = cast(Runner, SimpleNamespace(step=queue.step)), cast(Session, queue)
    assert waits_in_step(runner, session, samples) == waits


def test_a_step_that_waits_for_the_device_is_not_launch_bound() -> None:
    batches = (Batch(blocks=5, enqueue_s=0.0097, device_s=0.01, host_s=0.05),)
    launched, waiting = (
        a_measurement(batches=batches, notes=notes) for notes in ((), (note(NoteKind.HOST_WAITS),))
    )
    assert [note.kind for note in launch_notes([launched, waiting])] == [NoteKind.LAUNCH_BOUND]
    assert launch_notes([waiting]) == []


@pytest.mark.real
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("release", ["2.9.1", "2.11.0", "2.13.0+cu130"])
def test_every_optimizer_takes_a_step_on_cuda_in_every_release(
    release: str, name: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FakeTensorMode has CUDA tensors without a GPU. Older releases refuse CUDA in Adagrad's check."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    for kernel in ("_fused_sgd_", "_fused_adagrad_"):
        monkeypatch.setattr(torch, kernel, lambda *_, **__: None)  # fake tensors have none
    monkeypatch.setattr(torch, "__version__", release)
    if _optimizers._release(release) < _optimizers.FUSED_ADAGRAD_ON_CUDA:
        adagrad: Any = sys.modules["torch.optim.adagrad"]
        check = adagrad._device_dtype_check_for_fused
        monkeypatch.setattr(
            adagrad, "_device_dtype_check_for_fused", lambda p: check(p, cuda_unsupported=True)
        )
    with FakeTensorMode():
        parameter = torch.zeros(3, device="cuda:0", requires_grad=True)
        update = OPTIMIZERS[name].torch([parameter], fused=fused)
        parameter.grad = torch.zeros(3, device="cuda:0")
        update.step()


def batches(*shares: float) -> tuple[Batch, ...]:
    """Blocks of 10 ms on the device, launched in these shares of that time."""
    return tuple(Batch(blocks=5, enqueue_s=0.01 * share, device_s=0.01, host_s=0.05) for share in shares)


@pytest.mark.parametrize(
    ("shares", "share", "bound"),
    [
        ([0.79], 0.79, False),
        ([0.81], 0.81, True),
        ([1.0], 1.0, True),
        ([0.02], 0.02, False),
        ([0.1, 0.1, 1.0], 0.1, False),  # one delayed batch does not decide
        ([], None, False),  # timed by the host
    ],
)
def test_a_host_that_is_not_done_launching_a_fifth_of_the_block_before_the_device_is_the_bound(
    shares: list[float], share: float | None, bound: bool
) -> None:
    measurement = a_measurement(batches=batches(*shares))
    assert launch_share(measurement) == (share if share is None else pytest.approx(share))
    notes = [n.text for n in launch_notes([measurement])]
    assert [note.startswith("launch-bound: ") for note in notes] == [True] * bound


def test_a_row_notes_the_share_and_rounds_that_were_launch_bound() -> None:
    bound, free = a_measurement(batches=batches(0.97)), a_measurement(batches=batches(0.5))
    table = rows(a_run([a_record(result, round=n) for n, result in enumerate((bound, free, bound))]))
    text = "launch-bound: launching took the host 97.0 % of the device's time, in 2 of 3 rounds"
    assert text in [note.text for note in table[0].notes]


@pytest.mark.parametrize(("cost_s", "marked"), [(1e-5, False), (1.1e-5, True), (None, False), (0.0, False)])
def test_a_block_shorter_than_a_thousand_timings_is_marked(cost_s: float | None, marked: bool) -> None:
    notes = [n.text for n in launch_notes([a_measurement(timer_cost_s=cost_s, block_s=(0.01,) * 5)])]
    assert [note.startswith("timing takes ") for note in notes] == [True] * marked
