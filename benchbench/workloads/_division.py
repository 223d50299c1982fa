"""How weights are divided among devices, as data: which of them, and along which axis. Knows no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatch

from benchbench.model.placement import Strategy


class Division(StrEnum):
    """Which part of a layer's weight, (outputs, inputs), each device has.

    Shoeybi et al. 2019, "Megatron-LM", 3.
    """

    COLUMNS = "columns"  # some outputs, from all inputs; the outputs stay divided
    HEADS = "heads"  # the same for queries, keys and values in one weight: those of some heads
    ROWS = "rows"  # some inputs, which are divided already; the devices' partial sums are added up
    VOCABULARY = "vocabulary"  # some rows of a table; what the devices look up is added up
    LOGITS = "logits"  # some outputs, from all inputs; the devices compute the loss together


DivisionPlan = Mapping[str, Division]  # by the name of a module, or a pattern of names
ENCODER_LAYER = {  # of nn.TransformerEncoderLayer: its modules, where attention is two dense layers
    "self_attn.in_proj": Division.HEADS,
    "self_attn.out_proj": Division.ROWS,
    "linear1": Division.COLUMNS,
    "linear2": Division.ROWS,
}
CAUSAL_LAYERS: DivisionPlan = {  # of a decoder whose queries, keys and values are one weight
    "layers.*.qkv": Division.HEADS,
    "layers.*.out": Division.ROWS,
    "layers.*.up": Division.COLUMNS,
    "layers.*.down": Division.ROWS,
}
ENCODER_LAYERS = {f"layers.*.{name}": division for name, division in ENCODER_LAYER.items()}


def layer_of(name: str) -> str:
    """The layer that a weight or a bias belongs to: `layers.0.out` for `layers.0.out.weight`."""
    return name.removesuffix("weight").removesuffix("bias").rstrip("._")


def division_of(plan: DivisionPlan, name: str) -> Division | None:
    """How the layer of that weight is divided; None: it is not."""
    layer = layer_of(name)
    return next((division for pattern, division in plan.items() if fnmatch(layer, pattern)), None)


def planned_axis(plan: DivisionPlan, name: str, axes: int) -> int | None:
    """The axis along which torch's styles divide a weight of so many axes; None: each device has the whole.

    A bias of a layer whose sums are added up is added once: it is not divided.
    """
    division = division_of(plan, name)
    if division is Division.ROWS:
        return 1 if axes > 1 else None
    return None if division is None else 0


def marked_axis(strategy: Strategy, shape: Sequence[int], devices: int, outputs: int) -> int | None:
    """The axis along which a weight is divided where XLA's partitioner derives the rest; None: not at all.

    Fully sharded along the longest axis that the devices divide equally, tensor-parallel along that of its
    `outputs` if they do.
    """
    equal = [axis for axis, size in enumerate(shape) if size and size % devices == 0]
    if strategy is Strategy.FULLY_SHARDED:
        return max(equal, key=lambda axis: shape[axis], default=None)
    return outputs if strategy is Strategy.TENSOR_PARALLEL and outputs in equal else None
