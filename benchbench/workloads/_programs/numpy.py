"""Layers and training in float64, with gradients by automatic differentiation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from benchbench.workloads._conv_layers import Conv, ConvTranspose
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads.base import Step
from benchbench.workloads.network import Network, micro_batches, part_of_batch

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Tensors


def training(
    network: Network,
    optimizer: Optimizer,
    arrays: Arrays,
    ops: Any = None,
    batches: Iterator[Arrays] | None = None,
) -> Iterator[Step]:
    """Endless training steps; `ops` may round (`_reference/ops.py`).

    `batches` are the arrays that change from step to step; None means that every step has the same.
    """
    import numpy as np

    from benchbench.workloads._reference.ops import Ops

    ops = ops or Ops()
    stored = ops.rounding.stored
    real = np.float32 if ops.rounding.updates_in_float32 else np.float64
    layouts = network.weights()
    weights = {name: arrays[name].astype(float) for name in layouts}
    parameters = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    slots = {name: dict.fromkeys(optimizer.slots, np.zeros_like(p)) for name, p in parameters.items()}
    for t, batch in enumerate(batches or repeat({}), start=1):
        step_arrays = {**arrays, **batch}
        total, all_gradients = 0.0, dict[str, Any]()
        for objective in network.objectives:
            names = [name for name in parameters if objective.moves(name)]
            loss, gradients = accumulate_gradients(
                network, weights | parameters, names, step_arrays, ops, objective
            )
            for name, gradient in gradients.items():
                slot_values = {key: np.asarray(s, real) for key, s in slots[name].items()}
                operands = np.asarray(parameters[name], real), np.asarray(gradient, real)
                p, slot_values = optimizer.rule(np, real(t), *operands, slot_values)
                parameters[name] = stored(np.asarray(p, float))
                slots[name] = {key: stored(np.asarray(s, float)) for key, s in slot_values.items()}
            total, all_gradients = total + loss, all_gradients | gradients
        state_gradients = (
            {name: optimizer.gradient(slot_values) for name, slot_values in slots.items()}
            if optimizer.slots
            else {}
        )
        yield Step(total, all_gradients, dict(parameters), state_gradients)


def accumulate_gradients(
    network: Network, weights: Tensors, learnt: list[str], arrays: Arrays, ops: Any, objective: Objective
) -> tuple[float, Tensors]:
    """Loss and gradients as means over micro-batches; sums are rounded when stored."""
    (total, sums), *remaining = (
        gradients_of(network, weights, learnt, part, ops, objective)
        for part in micro_batches(network, arrays)
    )
    for loss, gradients in remaining:
        total += loss
        sums = {name: ops.rounding.stored(sums[name] + gradient) for name, gradient in gradients.items()}
    return total / network.accumulate, _divided(sums, network.accumulate)


def _divided(gradients: Tensors, divisor: float) -> Tensors:
    """Gradients divided by a number. They are not copied if it is 1, since copying millions takes long."""
    return gradients if divisor == 1 else {name: gradient / divisor for name, gradient in gradients.items()}


def updates(optimizer: Optimizer, weights: Tensors, gradients: Tensors, ops: Any = None) -> Iterator[Step]:
    """Endless updates with the same gradients. `state_gradients` is the whole state of the optimizer.

    The loss is the first element of the last parameter. `ops` may round every operation of the rule, and
    hyper-parameters to float32, in which TensorFlow's kernels subtract them from 1.
    """
    import numpy as np

    from benchbench.workloads._reference.ops import Ops
    from benchbench.workloads._reference.rounding import Elementwise

    rounding = (ops or Ops()).rounding
    real = np.float32 if rounding.updates_in_float32 else np.float64
    settings: dict[str, Any] = {key: real(value) for key, value in asdict(optimizer).items()}
    optimizer = replace(optimizer, **settings)
    slots = {name: dict.fromkeys(optimizer.slots, np.zeros_like(p)) for name, p in weights.items()}
    for t in count(1):
        for name, p in weights.items():
            slot_values = {key: Elementwise(s, rounding) for key, s in slots[name].items()}
            operands = Elementwise(p, rounding), Elementwise(gradients[name], rounding)
            next_parameter, slot_values = optimizer.rule(np, real(t), *operands, slot_values)
            slots[name] = {key: rounding.stored(s.values) for key, s in slot_values.items()}
            weights = weights | {name: rounding.stored(next_parameter.values)}
        state = {
            f"{name} ({key})": s for name, slot_values in slots.items() for key, s in slot_values.items()
        }
        yield Step(float(list(weights.values())[-1].flat[0]), gradients, weights, state)


def gradients_of(
    network: Network,
    weights: Tensors,
    learnt: list[str],
    arrays: Arrays,
    ops: Any = None,
    objective: Objective | None = None,
) -> tuple[float, Tensors]:
    """Loss of `objective`, or of the only one, and its gradient with respect to each weight in `learnt`.

    The loss is multiplied by the scale of `ops.rounding` before differentiation, as for float16.
    """
    from autograd import value_and_grad

    from benchbench.workloads._reference.ops import Ops

    operations, objective = ops or Ops(), objective or network.objectives[0]
    step_arrays = {
        name: array.astype(float) if name in network.input_names and array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }
    parts = [part_of_batch(network, step_arrays, part, network.replicas) for part in range(network.replicas)]

    def loss(parameters: Any) -> Any:
        used = {name: operations.rounding.parameter(p) for name, p in parameters.items()}
        return scale * sum(loss_of(part, {**weights, **used}) for part in parts) / len(parts)

    def loss_of(part: Arrays, parameters: Any) -> Any:
        inputs = (part[name] for name in network.input_names)
        output = network.numpy(operations, parameters, *inputs, training=True, **objective.options)
        return objective.loss.numpy(operations, output, *(part[name] for name in objective.loss.target_names))

    scale = operations.rounding.scale
    value, gradients = value_and_grad(loss)({name: weights[name] for name in learnt})
    return float(value) / scale, _divided(gradients, scale)


def conv(ops: Any, x: Any, weights: dict[str, Any], conv: Conv) -> Any:
    """A convolution of images or videos, with its bias if there is one."""
    cross_correlation = ops.conv2d if len(conv.sizes) == 2 else ops.conv3d
    y = cross_correlation(x, weights[f"{conv.name}.weight"], stride=conv.strides, padding=conv.padding)
    bias = weights.get(f"{conv.name}.bias")
    return y if bias is None else ops.add_bias(y, bias)


def conv_transpose(ops: Any, x: Any, weights: dict[str, Any], layer: ConvTranspose) -> Any:
    """A transposed convolution of images, with its bias if there is one."""
    y = ops.conv_transpose2d(x, weights[f"{layer.name}.weight"], stride=layer.stride, padding=layer.edge)
    bias = weights.get(f"{layer.name}.bias")
    return y if bias is None else ops.add_bias(y, bias)


def dense(ops: Any, x: Any, weights: dict[str, Any], name: str) -> Any:
    """Product over the last axis, with the bias if there is one."""
    return ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def batch_norm(ops: Any, x: Any, weights: dict[str, Any], name: str, *, training: bool) -> Any:
    """Normalise by the batch's statistics in training, otherwise by the running ones."""
    scale, shift, mean, variance = (
        weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
    )
    return ops.batch_norm(x, scale, shift, None if training else (mean, variance))


def max_pool(ops: Any, x: Any, window: int) -> Any:
    """Maximum of windows that do not overlap; incomplete windows are dropped."""
    rows, columns = (side // window * window for side in x.shape[2:])
    return ops.max_pool2d(x[:, :, :rows, :columns], window)
