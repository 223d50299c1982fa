"""Properties of every workload and of every backend's session; test_matrix.py verifies the results."""

import importlib.util
import itertools
import math
import os
from contextlib import nullcontext, suppress
from functools import cache
from glob import glob
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchbench import registry
from benchbench.backends.base import Backend, HostTimer, Session, backend_class
from benchbench.errors import Unsupported, UsageError
from benchbench.model.case import Dtype
from benchbench.model.device import DeviceClass
from benchbench.worker import after_timing, verify
from benchbench.worker.program import Implausible, build
from benchbench.worker.reference import reference
from benchbench.workloads._optimizers import OPTIMIZERS
from benchbench.workloads.base import Draw, Operation, Program, Workload
from benchbench.workloads.operations.gemm import Gemm
from tests.tiny import NAMES, tiny, variants

REAL = ["torch", "tensorflow", "jax"]  # loaded together in this process; test_matrix.py has all backends
INSTALLED = [name for name in REAL if importlib.util.find_spec(name)]
THREADS = 2

# Warnings from inside a framework do not matter here.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@cache
def backend(name: str) -> Backend:
    if name not in INSTALLED:
        pytest.skip(f"{name} is not installed")
    loaded = backend_class(name)()
    loaded.load()
    return loaded


class Built:
    def __init__(
        self, name: str, work: Workload, dtype: Dtype, mode: str | None = None, device: str = "cpu"
    ) -> None:
        runtime = backend(name)
        self.session: Session = runtime.open(device, dtype, mode or runtime.modes[0], THREADS)
        self.session.precision()
        build = getattr(work, f"build_{runtime.framework}")
        self.program: Program = build(self.session, work.arrays(Draw(dtype)))
        self._compiled = self.session.compile(self.program.step, len(self.program.state))
        self.state = self.program.state

    def step(self) -> Any:
        feed = self.program.feed
        inputs = next(feed.batches) if feed else self.program.inputs
        result = self._compiled(*self.state, *inputs)
        if not self.state:
            return result
        *state, output = result
        self.state = tuple(state)
        return output


def deviation(built: Built, work: Workload, dtype: Dtype) -> verify.Deviation:
    expected = reference(work, dtype)
    if isinstance(work, Operation):
        output = built.step()
        built.session.wait(output)
        elements = verify.output_elements(work, built.program, output, built.session)
        return verify.output_deviation(work, elements, expected.expected, expected.tolerance)
    elements = verify.trained_elements(built.program, built.step, lambda: built.state, built.session)
    return verify.worst(elements, expected.expected, expected.tolerance, expected.outliers)


# Device nodes of NVIDIA GPUs, TPUs and AMD GPUs: without one, 2,000 queries of frameworks are skipped.
NODES = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/kfd")
ACCELERATED: list[Any] = list(itertools.product(REAL, NAMES, Dtype))
if not any(map(glob, NODES)):
    ACCELERATED = [pytest.param(*ACCELERATED[0], marks=pytest.mark.skip("no accelerator in /dev"))]


@pytest.mark.real
@pytest.mark.gpu
@pytest.mark.parametrize(("framework", "name", "dtype"), ACCELERATED)
def test_every_accelerator_computes_what_float64_computes(framework: str, name: str, dtype: Dtype) -> None:
    all_devices, missing = backend(framework).devices()
    devices = [device.name for device in all_devices if device.device_class is DeviceClass.ACCELERATOR]
    if not devices:
        pytest.skip(f"{framework} has no accelerator here: {missing}")
    for work in variants(name):
        try:
            built = Built(framework, work, dtype, device=devices[0])
        except Unsupported as reason:
            pytest.skip(str(reason))
        assert deviation(built, work, dtype).ratio <= 1
        assert built.session.timer().blocks(built.step, 1, 2)[1] > 0
        assert built.session.peak_device().bytes


@pytest.mark.real
@pytest.mark.parametrize("framework", REAL)
def test_tf32_is_refused_on_cpus(framework: str) -> None:
    with pytest.raises(Unsupported, match="TF32"):
        backend(framework).open("cpu", Dtype.TF32, backend(framework).modes[0], THREADS)


@pytest.mark.real
def test_a_product_without_synchronisation_is_implausible() -> None:
    work = Gemm(m=2048, n=2048, k=2048)  # takes much longer than a launch on a busy machine
    for wait, expected in ((False, Implausible), (True, None)):
        session = backend("jax").open("cpu", Dtype.FLOAT32, "jit", THREADS)
        timer = session.timer() if wait else HostTimer(lambda output: None)
        runner = build(backend("jax"), session, work, Dtype.FLOAT32)
        with pytest.raises(expected) if expected else nullcontext():
            after_timing.check_waited(work, runner, session, timer, 1)


@pytest.mark.real
@pytest.mark.parametrize("framework", REAL)
def test_data_can_stay_on_the_host_in_the_dtype_of_the_case(framework: str) -> None:
    session = backend(framework).open("cpu", Dtype.BFLOAT16, backend(framework).modes[0], THREADS)
    values = np.array([1.5, -2.0], np.float32)
    on_host = session.put_on_host(values)
    assert "bfloat16" in str(on_host.dtype)
    np.testing.assert_array_equal(session.fetch(on_host), values)
    with suppress(Unsupported):  # if the memory cannot be pinned
        np.testing.assert_array_equal(session.fetch(session.put_on_host(values, pinned=True)), values)


@pytest.mark.real
@pytest.mark.parametrize("framework", REAL)
def test_devices_are_named_and_absent_kinds_explained(framework: str) -> None:
    devices, missing = backend(framework).devices()
    assert devices[0].name == "cpu"
    assert all(reason for reason in missing.values())


def test_a_tiny_workload_is_smaller_and_counts_its_work() -> None:
    for name in NAMES:
        full = registry.load_class("benchbench.workloads", name, Workload)()  # type: ignore[type-abstract]
        small = full.tiny()
        for work in (full, small):
            cost = work.cost(Dtype.FLOAT32)
            assert min(cost.bytes, cost.items) > 0
            assert work.cost(Dtype.FLOAT16).bytes * 2 == cost.bytes
        little, much = (work.cost(Dtype.FLOAT32) for work in (small, full))
        least = 2 * Dtype.FLOAT32.itemsize  # an element in and an element out
        assert (little.flops or little.bytes) < (much.flops or much.bytes) / 10 or much.bytes == least


def test_a_backward_pass_costs_two_or_three_forward_passes() -> None:
    backward = {name: tiny(name) for name in NAMES if name.endswith("_backward")}
    for name, work in backward.items():
        forward = type(tiny(name.removesuffix("_backward")))(**work.params).cost(Dtype.FLOAT32)
        cost = work.cost(Dtype.FLOAT32)
        if forward.flops:
            assert (cost.flops / forward.flops, cost.bytes / forward.bytes) in {(2, 2), (3, 3)}
        else:  # memory-bound work also moves the gradients
            assert (cost.flops, cost.bytes > forward.bytes) == (0, True)
    assert backward


EXAMPLES = 100 if os.environ.get("CI") else 25  # for each workload
SIZES = st.integers(0, 300) | st.integers(0, 9).map(lambda power: 2**power)
VALUES = {
    bool: st.booleans(),
    int: SIZES,
    float: st.floats(0, 1),
    str: st.sampled_from([*OPTIMIZERS, "small", "none"]),
}


@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_parameters_are_refused_or_give_an_output(name: str, data: st.DataObject) -> None:
    kind: Any = registry.load_class("benchbench.workloads", name, Workload)
    params = {key: data.draw(VALUES[type(default)], key) for key, default in kind.fields().items()}
    try:
        work = kind(**params)
    except UsageError:
        return
    assert min(work.output_shape, default=1) > 0
    assert min(work.cost(Dtype.FLOAT32).bytes, work.cost(Dtype.FLOAT32).items) > 0


@pytest.mark.real
def test_arrays_are_seeded_normal_and_representable() -> None:
    for name in NAMES:
        work = tiny(name)
        first, again = work.arrays(Draw(Dtype.BFLOAT16)), work.arrays(Draw(Dtype.BFLOAT16))
        for key, values in first.items():
            np.testing.assert_array_equal(values, again[key])
            if values.dtype == np.float32:
                assert not (values.view(np.uint32) & 0xFFFF).any()
                assert values.std() > 0 or values.size == 1


def test_rounding_to_a_dtype_is_to_the_nearest_even() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    from benchbench.workloads.base import rounded

    for dtype, scalar in ((Dtype.BFLOAT16, ml_dtypes.bfloat16), (Dtype.FLOAT16, np.float16)):
        np.testing.assert_array_equal(rounded(values, dtype), values.astype(scalar).astype(np.float32))


def test_a_non_finite_result_has_an_infinite_error() -> None:
    work = tiny("gemm")
    assert isinstance(work, Operation)

    class Reader:
        def take(self, output: Any, index: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.full(len(index), math.nan)

        def fetch(self, output: Any) -> NDArray[np.float64]:
            return np.full(1, math.nan)

    expected = reference(work, Dtype.FLOAT32)
    elements = verify.output_elements(work, Program(lambda: None), object(), Reader())
    assert verify.worst(elements, expected.expected, expected.tolerance).error == math.inf
