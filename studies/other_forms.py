"""Durations of alternative programs for some workloads, on this CPU in one thread.

    python -m studies.other_forms > studies/output/other_forms.md

Compares forms of attention in TensorFlow, which has no fused kernel. Compares ONNX Runtime's convolution with
filters as inputs and as constants. Compares torch's convolution with plain weights and with weights in
oneDNN's layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from studies.alternating import alternated, lines

HEADS, LENGTH, WIDTH = 8, 256, 64  # of quick's attention, of one sample
Functions = dict[str, Callable[[], object]]


def random_array(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def tensorflow_attention() -> Functions:
    """Return forms of attention, beginning with the form of the workload."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    q, k, v = (tf.constant(random_array(1, HEADS, LENGTH, WIDTH)) for _ in range(3))
    scale = tf.constant(1 / math.sqrt(WIDTH))

    def before(q: Any, k: Any, v: Any) -> Any:
        return tf.matmul(tf.nn.softmax(tf.matmul(q * scale, k, transpose_b=True)), v)

    def after(q: Any, k: Any, v: Any) -> Any:
        return tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * scale), v)

    def einsum(q: Any, k: Any, v: Any) -> Any:
        weights = tf.nn.softmax(tf.einsum("bhqd,bhkd->bhqk", q, k) * scale)
        return tf.einsum("bhqk,bhkd->bhqd", weights, v)

    def by_heads(q: Any, k: Any, v: Any) -> Any:
        heads = zip(*(tf.unstack(array[0]) for array in (q, k, v)), strict=True)
        return tf.stack([before(*head) for head in heads])[None]

    def heads_inside(q: Any, k: Any, v: Any) -> Any:
        weights = tf.nn.softmax(tf.einsum("bqhd,bkhd->bhqk", q, k) * scale)
        return tf.einsum("bhqk,bkhd->bqhd", weights, v)

    forms = {
        "scaled before the product": before,
        "scaled after it": after,
        "tf.einsum": einsum,
        "head by head": by_heads,
    }
    functions = {name: _called(tf.function(form), q, k, v) for name, form in forms.items()}
    inside = [tf.transpose(array, [0, 2, 1, 3]) for array in (q, k, v)]
    functions["heads behind the length, as in Keras"] = _called(tf.function(heads_inside), *inside)
    functions["compiled by XLA"] = _called(tf.function(before, jit_compile=True), q, k, v)
    return functions


def onnxruntime_convolution() -> Functions:
    """Return the convolution of the suite `quick`, with filters as an input and as a constant."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    images, filters = random_array(8, 64, 28, 28), random_array(64, 64, 3, 3)

    def bound(*, constant: bool) -> Callable[[], object]:
        inputs = {"x": images} if constant else {"x": images, "w": filters}
        graph = helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4, kernel_shape=[3, 3])],
            "convolution",
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
                for name, array in inputs.items()
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, images.shape)],
            [numpy_helper.from_array(filters, "w")] if constant else [],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        binding.bind_output("y", "cpu")
        return lambda: session.run_with_iobinding(binding)

    return {"filters given": bound(constant=False), "filters constant": bound(constant=True)}


def torch_convolution(channels: int, side: int) -> Functions:
    """Return a 3 × 3 convolution of one image, with plain weights and with weights in oneDNN's layout."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    last, ones = torch.channels_last, [1, 1]
    x = torch.tensor(random_array(1, channels, side, side)).contiguous(memory_format=last)
    weights = torch.tensor(random_array(channels, channels, 3, 3)).contiguous(memory_format=last)
    packed = torch.ops.mkldnn._reorder_convolution_weight(weights, ones, ones, ones, 1, list(x.shape))
    convolve = torch.ops.mkldnn._convolution_pointwise
    with torch.inference_mode():
        return {
            "weights as they are": lambda: F.conv2d(x, weights, padding=1),
            "weights in oneDNN's layout": lambda: convolve(
                x, packed, None, ones, ones, ones, 1, "none", [], ""
            ),
        }


def _called(function: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
    return lambda: function(*arguments)


def main() -> None:
    """Print a table for each computation."""
    for title, functions in {
        "TensorFlow's attention, 8 heads, 256 × 64": tensorflow_attention(),
        "ONNX Runtime's convolution, 8 images of 28 × 28, 64 channels": onnxruntime_convolution(),
        "torch's 3 × 3 convolution, 512 channels, 7 × 7": torch_convolution(512, 7),
        "torch's 3 × 3 convolution, 64 channels, 56 × 56": torch_convolution(64, 56),
    }.items():
        print(
            f"## {title}\n" + "\n".join(lines(alternated(functions), next(iter(functions)))) + "\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
