"""TF-TRT, TensorFlow's conversion of inference to TensorRT's engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchbench.model.case import Dtype

# Dtype → TF-TRT's precision_mode. Weights and inputs stay float32; the converter narrows the layers.
TENSORRT_PRECISION = {Dtype.FLOAT32: "FP32", Dtype.FLOAT16: "FP16"}


def convert_by_tensorrt(step: Callable[..., Any], precision: str | None) -> Callable[..., Any]:
    """`step` through TF-TRT, engines built at the first call for the shapes it is given."""
    converted: list[Callable[..., Any]] = []

    def run(*inputs: Any) -> Any:
        if not converted:
            converted.append(_convert(step, precision, inputs))
        (output,) = converted[0](*inputs)
        return output

    return run


def _convert(step: Callable[..., Any], precision: str | None, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    import tempfile

    import tensorflow as tf
    from tensorflow.python.compiler.tensorrt import trt_convert

    module = tf.Module()
    module.step = tf.function(step, autograph=False)
    concrete = module.step.get_concrete_function(*(tf.TensorSpec(each.shape, each.dtype) for each in inputs))
    module.held = list(concrete.graph.variables)  # a saved model keeps only what its module can reach
    with tempfile.TemporaryDirectory(prefix="tensorrt-", dir=".") as folder:
        tf.saved_model.save(module, folder, signatures=concrete)
        converter = trt_convert.TrtGraphConverterV2(input_saved_model_dir=folder, precision_mode=precision)
        function = converter.convert()
        converter.build(input_fn=lambda: [inputs])
    found: Callable[..., Any] = function
    return found
