"""The given weights, put into each framework's model.

They are named as in PyTorch's state dict: `conv1.weight` is OIHW, `dense1.weight` (outputs, inputs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext


def load_torch(context: DeviceContext, arrays: Arrays, model: Any) -> Any:
    """`model`, made on the meta device, with its weights on the context's device, channels last."""
    import torch

    state = {name: context.put(array) for name, array in weights_of(arrays).items()}
    model.load_state_dict(state, assign=True)
    return model.to(device=context.device, memory_format=torch.channels_last)


def tensorflow_variables(context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Weights by name, as variables on the context's device."""
    import tensorflow as tf

    with tf.device(context.device):
        return {
            name: tf.Variable(context.put(array), trainable=is_learnt(name))
            for name, array in channels_last(arrays).items()
        }


def put_jax(context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Weights by name, on the context's device."""
    return {name: context.put(array) for name, array in channels_last(arrays).items()}


def weights_of(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """All but the images and their labels."""
    return {name: array for name, array in arrays.items() if name not in ("images", "labels")}


def is_learnt(name: str) -> bool:
    """Whether the optimizer changes the weight; running statistics are only carried along."""
    return not name.endswith((".running_mean", ".running_var"))


def channels_last(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """The weights as TensorFlow and JAX have them: OIHW → HWIO, (outputs, inputs) → (inputs, outputs)."""
    return {
        name: array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        for name, array in weights_of(arrays).items()
    }


def nhwc(images: NDArray[np.generic]) -> NDArray[np.generic]:
    """Images, NCHW → NHWC, laid out so in memory."""
    import numpy as np

    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))
