"""Layers and training in float64, with gradients by automatic differentiation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

from benchbench.workloads._forward import FunctionalForward, Place
from benchbench.workloads._layers import Conv, ConvTranspose
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads.base import Step
from benchbench.workloads.network import Network, micro_batches, part_of_batch

if TYPE_CHECKING:
    from benchbench.workloads._reference.ops import Ops
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
        nn = ReferenceForward(operations, parameters, training=True)
        output = network.apply(nn, *inputs, **objective.options)
        return objective.loss.numpy(operations, output, *(part[name] for name in objective.loss.target_names))

    scale = operations.rounding.scale
    value, gradients = value_and_grad(loss)({name: weights[name] for name in learnt})
    return float(value) / scale, _divided(gradients, scale)


class ReferenceForward(FunctionalForward):
    """The reference's operations `ops`, which may round. Weights and images have PyTorch's layout."""

    channel_axis = 1

    def __init__(self, ops: Ops, weights: dict[str, Any], *, training: bool = False) -> None:
        super().__init__(weights, training=training)
        self.ops = ops
        self.xp = ops.np
        self.add, self.multiply, self.linear = ops.add, ops.multiply, ops.linear
        self.relu, self.leaky_relu, self.silu, self.tanh = ops.relu, ops.leaky_relu, ops.silu, ops.tanh
        self.gelu, self.gelu_tanh, self.attention = ops.gelu, ops.gelu_tanh, ops.attention
        self.normalise_rows, self.normalise_rms, self.rows = ops.layer_norm, ops.rms_norm, ops.embedding
        self.concatenate = ops.np.concatenate
        self.cast = lambda x, _: x
        self.constant = lambda x: x

    def outputs_of(self, weight: Any, start: int, stop: int) -> Any:
        return weight[start:stop]

    def batch_norm(self, x: Any, name: str) -> Any:
        parts = ("weight", "bias", "running_mean", "running_var")
        scale, shift, mean, variance = (self.weights[f"{name}.{part}"] for part in parts)
        return self.ops.batch_norm(x, scale, shift, None if self.training else (mean, variance))

    def take(self, x: Any, places: Any) -> Any:
        return x[self.xp.arange(len(places))[:, None], places]

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        return self.add(x, self.table(name)[: x.shape[1]])

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        return tuple(self.weights[name][: x.shape[1], None] for name in names)

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        q, k, v = (self.heads(part, width) for part in self.split(x, 3))
        return q, k, v

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        return self.attention(q, k, v, causal=True).reshape(*q.shape[:2], -1)

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return self.linear(x, self.table(name))

    def tied_dense(self, x: Any, table: str, name: str) -> Any:
        return self.linear(x, self.table(table), self.weights[f"{name}.bias"])

    def conv(self, x: Any, layer: Conv) -> Any:
        kinds: dict[int, Any] = {1: self.ops.conv1d, 2: self.ops.conv2d, 3: self.ops.conv3d}
        kind, weight = kinds[len(layer.sizes)], self.weights[f"{layer.name}.weight"]
        return self._add_bias(kind(x, weight, stride=layer.strides, padding=layer.padding), layer.name)

    def conv_transpose(self, x: Any, layer: ConvTranspose) -> Any:
        weight = self.weights[f"{layer.name}.weight"]
        y = self.ops.conv_transpose2d(x, weight, stride=layer.stride, padding=layer.edge)
        return self._add_bias(y, layer.name)

    def _add_bias(self, y: Any, name: str) -> Any:
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else self.ops.add_bias(y, bias)

    def max_pool(self, x: Any, window: int) -> Any:
        rows, columns = (side // window * window for side in x.shape[2:])
        return self.ops.max_pool2d(x[:, :, :rows, :columns], window)

    def overlapping_max_pool(self, x: Any) -> Any:
        return self.ops.max_pool2d(x, 3, stride=2, padding=1)

    def mean_pixels(self, x: Any) -> Any:
        return self.ops.mean(x, tuple(range(2, x.ndim)))

    def channels_last(self, x: Any) -> Any:
        return self.xp.moveaxis(x, 1, -1)

    def channels_first(self, x: Any) -> Any:
        return self.xp.moveaxis(x, -1, 1)
