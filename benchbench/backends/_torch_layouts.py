"""Where torch's images lie channels last: a table by device and dtype, each line with its source.

Channels last is a choice of memory, not of computation: `Tensor.to(memory_format=torch.channels_last)`.
TensorFlow and JAX take images channels last everywhere, ONNX channels first. A row says which it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchbench.model.case import Dtype

TENSOR_CORES = frozenset(
    {Dtype.TF32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.AMP_FP16, Dtype.AMP_BF16}
)  # multiply in these


@dataclass(frozen=True, slots=True)
class Guidance:
    """What is said of a kind of device, by torch's name, and of some dtypes."""

    device: str
    dtypes: frozenset[Dtype]
    channels_last: bool
    source: str


TABLE = (
    Guidance(
        "cpu",
        frozenset(Dtype),
        channels_last=True,
        source="oneDNN reorders channels first for each convolution: "
        "https://pytorch.org/blog/accelerating-pytorch-vision-models-with-channels-last-on-cpu/; "
        "measured: studies/output/torch_layouts.md",
    ),
    Guidance(
        "cuda",
        TENSOR_CORES,
        channels_last=True,
        source="tensor cores take it without a transposition: "
        "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    ),
    Guidance(
        "cuda",
        frozenset({Dtype.FLOAT32, Dtype.FLOAT64}),
        channels_last=False,
        source="without tensor cores it is not faster, and was 1.6 times as slow on a V100: pytorch#44943",
    ),
    Guidance("xla", frozenset(Dtype), channels_last=False, source="XLA lays out arrays itself"),
)


def lie_channels_last(device: str, dtype: Dtype) -> bool:
    """What the first line for the device, by torch's name, and the dtype says; without one False."""
    lines = (line for line in TABLE if line.device == device and dtype in line.dtypes)
    return next((line.channels_last for line in lines), False)
