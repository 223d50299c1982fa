"""Memory layout of images: torch's is the recommended one, and each row names the layout."""

from typing import Any

import pytest

from benchbench.analyse.rows import flatten, rows
from benchbench.backends._torch import uses_channels_last
from benchbench.backends.base import Backend, Session
from benchbench.backends.jax import Jax
from benchbench.backends.tensorflow import TensorFlow
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.workloads.base import Draw, Program
from tests.conftest import THREADS
from tests.factories import a_measurement, a_record, a_run
from tests.tiny import tiny


@pytest.mark.parametrize(
    ("device", "dtype", "last"),
    [
        ("cpu", Dtype.FLOAT32, True),
        ("cpu", Dtype.BFLOAT16, True),
        ("cuda", Dtype.FLOAT16, True),
        ("cuda", Dtype.AMP_BF16, True),
        ("cuda", Dtype.TF32, True),
        ("cuda", Dtype.FLOAT32, False),  # IEEE: without tensor cores
        ("xla", Dtype.BFLOAT16, False),
        ("meta", Dtype.FLOAT32, False),  # no recommendation
    ],
)
def test_torch_uses_channels_last_as_recommended(device: str, dtype: Dtype, last: bool) -> None:
    assert uses_channels_last(device, dtype) is last


def test_a_row_names_the_layout_of_images_only() -> None:
    def layouts(**over: Any) -> list[str]:
        return [flatten(row)["layout"] for row in rows(a_run([a_record(a_measurement(**over))]))]

    assert layouts(layout="NCHW") == ["NCHW"]
    assert layouts() == [""]


def built(backend: Backend, mode: str, name: str, *, channels_last: bool = True) -> Program:
    session: Session = backend.open("cpu", Dtype.FLOAT32, mode, THREADS)
    session.channels_last = channels_last
    work = tiny(name)
    return backend.program(session, work, work.arrays(Draw(Dtype.FLOAT32)))


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("conv2d", ("NCHW", "NHWC")),
        ("conv2d_backward", ("NCHW", "NHWC")),
        ("conv2d_backward_data", ("NCHW", "NHWC")),
        ("conv3d", ("NCDHW", "NDHWC")),
        ("conv_transpose2d", ("NCHW", "NHWC")),
        ("max_pool2d_backward", ("NCHW", "NHWC")),
        ("convnet_infer", ("NCHW", "NHWC")),
        ("convnet_train", ("NCHW", "NHWC")),
    ],
)
def test_torch_images_have_the_stated_layout(name: str, layouts: tuple[str, str]) -> None:
    torch = pytest.importorskip("torch")
    formats = {
        "NCHW": torch.contiguous_format,
        "NCDHW": torch.contiguous_format,
        "NHWC": torch.channels_last,
        "NDHWC": torch.channels_last_3d,
    }
    for last, layout in enumerate(layouts):
        program = built(Torch(), "eager", name, channels_last=bool(last))
        assert program.layout == layout
        images = [tensor for tensor in program.inputs if tensor.ndim > 3]
        assert images
        assert all(image.is_contiguous(memory_format=formats[layout]) for image in images)


@pytest.mark.real
@pytest.mark.parametrize(("backend", "mode"), [(TensorFlow(), "function"), (Jax(), "jit")])
def test_images_are_channels_last_in_other_frameworks(backend: Backend, mode: str) -> None:
    pytest.importorskip(backend.framework)
    assert built(backend, mode, "depthwise_conv2d").layout == "NHWC"
    assert built(backend, mode, "conv3d").layout == "NDHWC"
    assert built(backend, mode, "gemm").layout == ""


@pytest.mark.real
@pytest.mark.parametrize("name", ["transformer_infer", "speech_encoder_infer"])
def test_a_network_without_images_has_no_layout(name: str) -> None:
    pytest.importorskip("torch")
    assert built(Torch(), "eager", name).layout == ""
