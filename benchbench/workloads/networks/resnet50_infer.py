"""Inference with ResNet-50 v1.5: logits of a batch of images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads import _resnet50 as resnet50
from benchbench.workloads._layers import forward_cost
from benchbench.workloads._resnet50_models import (
    float64_forward,
    jax_forward,
    tensorflow_forward,
    torch_model,
)
from benchbench.workloads._weights import nhwc, put_jax, tensorflow_variables, weights_of
from benchbench.workloads.base import DeviceContext, Draw, Operation, Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays


@dataclass(frozen=True)
class Resnet50Infer(Operation):
    """Batch norm uses its running statistics and is not folded by hand; a compiler may fold it."""

    batch: int = 32
    image: int = 224

    summary = "inference with ResNet-50 v1.5"
    multiplications_saved = 4.0  # as of conv2d

    def __post_init__(self) -> None:
        """Raise UsageError for a side that is no multiple of 32."""
        super().__post_init__()
        resnet50.check(self.image)

    def cost(self, dtype: Dtype) -> Cost:
        """Counted over the convolutions and the dense layer; see `forward_cost`."""
        return forward_cost(resnet50.layers(self.image), self.batch, dtype)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """Images NCHW, and the weights by PyTorch's names."""
        images = draw.normal("images", self.batch, 3, self.image, self.image)
        return {"images": images, **resnet50.weights(draw)}

    @property
    def reduction(self) -> int:
        """Summed over the layers of the longest path."""
        return resnet50.reduction()

    @property
    def roundings(self) -> int:
        """On the longest path."""
        return resnet50.roundings()

    @property
    def output_shape(self) -> tuple[int, int]:
        """Images, classes."""
        return self.batch, resnet50.HEAD.outputs

    def tiny(self) -> Resnet50Infer:
        """Two images of 64 × 64."""
        return dataclasses.replace(self, batch=2, image=64)

    def sample(self, source: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Logits of one image: images do not meet in inference, and each costs a forward pass to check."""
        index = super().sample(source, count)
        index[:, 0] = index[0, 0]
        return index

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the images that are sampled, and no other."""
        import numpy as np

        from benchbench.workloads._float64 import Node, Tape

        images, rows = np.unique(index[:, 0], return_inverse=True)
        weights = {name: Node(array.astype(float)) for name, array in weights_of(arrays).items()}
        sampled = Node(arrays["images"][images].astype(float))
        logits = float64_forward(Tape(training=False), weights, sampled).value
        return np.asarray(logits[rows, index[:, 1]])

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module`, channels last, in inference mode."""
        import torch

        images = context.put(arrays["images"]).contiguous(memory_format=torch.channels_last)
        model = torch_model(context, arrays, self.image).eval()
        # torch_xla's tensors have no version counter, which inference mode would set.
        without_gradients = torch.no_grad if context.device.type == "xla" else torch.inference_mode

        def step(images: Any) -> Any:
            with without_gradients():
                return model(images)

        return Program(step, (images,))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow's operations on variables, NHWC."""
        variables = tensorflow_variables(context, arrays)

        def step(images: Any) -> Any:
            return tensorflow_forward(variables, images, training=False)

        return Program(step, (context.put(nhwc(arrays["images"])),))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of NHWC arrays; the weights are arguments, else XLA would take them for constants."""

        def step(weights: Any, images: Any) -> Any:
            logits, _ = jax_forward(weights, images, training=False)
            return logits

        return Program(step, (put_jax(context, arrays), context.put(nhwc(arrays["images"]))))
