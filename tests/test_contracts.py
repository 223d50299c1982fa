"""Properties of every workload and of every backend's session; test_matrix.py verifies the results."""

import importlib.util
import itertools
import os
from contextlib import nullcontext, suppress
from functools import cache
from glob import glob
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchbench import registry
from benchbench.backends.base import Backend, HostTimer, Session, backend_class
from benchbench.errors import Unsupported, UsageError
from benchbench.model.case import Dtype
from benchbench.model.device import DeviceClass
from benchbench.worker import after_timing, verify
from benchbench.worker.program import Implausible, OpenCase, build
from benchbench.worker.reference import reference
from benchbench.workloads._optimizers import OPTIMIZERS
from benchbench.workloads.base import Draw, Operation, Program, Workload
from benchbench.workloads.operations.gemm import Gemm
from tests.factories import a_case
from tests.tiny import EVERY, NAMES, parameters_of, tiny, variants

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
            after_timing.check_waited(OpenCase(backend("jax"), {}, a_case(), work, session, runner), timer, 1)


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

    scalars = {
        Dtype.BFLOAT16: ml_dtypes.bfloat16,
        Dtype.FLOAT16: np.float16,
        Dtype.FLOAT8: ml_dtypes.float8_e4m3fn,
    }
    for dtype, scalar in scalars.items():
        np.testing.assert_array_equal(rounded(values, dtype), values.astype(scalar).astype(np.float32))


PARAMETERS = {  # published numbers of trained values, with their source
    "bert_base_infer": 109_514_298,  # BertForMaskedLM, bert-base-uncased
    "convnet_train": 2_122_186,
    "dcgan_infer": 3_576_704,  # PyTorch's tutorial
    "dcgan_train": 3_576_704 + 2_765_568,
    "encoder_decoder_infer": 44_140_544,  # torch.nn.Transformer()
    "gpt2_train": 124_337_664,  # karpathy/nanoGPT, transformer_sizing.ipynb: without biases
    "mnist_cnn_infer": 93_322,
    "r3d18_infer": 33_371_472,  # torchvision
    "resnet50_infer": 25_557_032,
    # Whisper tiny's encoder, without its positions and with biases of its keys.
    "speech_encoder_infer": 8_208_384 - 1500 * 384 + 4 * 384,
    "ssd_head_infer": 3_341_550,  # torchvision's SSDHead of these maps and 21 classes
    "unet_infer": 31_030_658,  # 31,030,593 with one output channel
    "vgg16_infer": 138_357_544,  # torchvision
}
LLAMA_1B = {"width": 2048, "depth": 16, "heads": 32, "kv_heads": 8, "hidden": 8192, "vocabulary": 128_256}


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_published_number_of_parameters(name: str) -> None:
    assert parameters_of(EVERY[name]()) == PARAMETERS[name]


def test_llama_has_the_published_number_of_parameters() -> None:
    """Llama 3.2 1B (meta-llama/Llama-3.2-1B, config.json)."""
    assert parameters_of(EVERY["llama_decode"](**LLAMA_1B)) == 1_235_814_400


@pytest.mark.parametrize(
    ("name", "sizes", "params"),
    [
        ("bert_base_train", {}, {"batch": 32, "length": 128, "masked": 20}),
        ("convnet_train", {"optimizer": "adam"}, {"batch": 128, "optimizer": "adam"}),
        ("encoder_decoder_infer", {}, {"batch": 64, "source": 512, "target": 128}),
        ("gpt2_decode", {"batch": 8}, {"batch": 8, "length": 1024}),
        ("resnet50_infer", {"batch": 2, "streams": 1}, {"batch": 2, "image": 224}),
        ("resnet50_infer", {"batch": 2, "streams": 2}, {"batch": 2, "image": 224, "streams": 2}),
        ("resnet50_train", {"batch": 1}, {"batch": 1, "image": 224}),
        ("speech_encoder_train", {}, {"batch": 8, "frames": 1500}),
        ("vgg16_infer", {"width": 4}, {"batch": 32, "image": 224, "width": 4}),
    ],
)
def test_published_sizes_and_defaults_are_not_part_of_an_id(
    name: str, sizes: dict[str, Any], params: dict[str, Any]
) -> None:
    assert EVERY[name](**sizes).params == params


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("attention", {"kv_heads": 3}, "heads=8 must be a multiple of kv_heads=3"),
        ("avg_pool2d", {"kernel": 9, "height": 8}, "larger than the padded image"),
        ("bert_base_infer", {"hidden": 100, "heads": 8}, "hidden=100 must be a multiple of heads=8"),
        ("bert_base_infer", {"length": 19}, "between masked=20 and positions=512"),
        ("bert_base_infer", {"length": 513}, "between masked=20 and positions=512"),
        ("conv_transpose2d", {"height": 1, "width": 1, "kernel": 8, "padding": 4}, "a result of 0 × 0"),
        ("dropout", {"rate": 0.0}, "between 0 and 1"),
        ("dropout", {"rate": 1.0}, "between 0 and 1"),
        ("encoder_decoder_train", {"hidden": 100, "heads": 8}, "hidden=100 must be a multiple of heads=8"),
        ("gpt2_decode", {"length": 1}, "leaves no prompt"),
        ("gpt2_decode", {"length": 1025}, "length=1025 must be at most context=1024"),
        ("gpt2_decode", {"width": 100}, "width=100 must be a multiple of heads=12"),
        ("llama_decode", {"kv_heads": 3}, "heads=8 must be a multiple of kv_heads=3"),
        ("llama_decode", {"width": 120}, "width / heads = 15 must be even"),
        ("max_pool2d", {"kernel": 3, "padding": 2}, "at most half"),
        ("moe", {"tokens": 12}, "tokens=12 must be a multiple of 8"),
        ("moe", {"width": 7}, "width=7 must be at least 8"),
        ("r3d18_infer", {"depth": 34}, "depth=34 must be 18 or 10"),
        ("r3d18_infer", {"frames": 12}, "frames=12 must be a multiple of 8"),
        ("r3d18_train", {"batch": 1, "frames": 8, "image": 16}, "one value per channel"),
        ("resnet50_infer", {"image": 100}, "multiple of 32"),
        ("resnet50_train", {"batch": 1, "image": 32}, "one value per channel"),
        ("resnet50_train", {"image": 100}, "multiple of 32"),
        ("unet_train", {"image": 100}, "multiple of 16"),
        ("vgg16_train", {"image": 100}, "multiple of 32"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EVERY[name](**sizes)
