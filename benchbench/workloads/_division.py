"""How a layer's weight is divided by tensor parallelism, as data: Shoeybi et al. 2019, "Megatron-LM", 3."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Division(StrEnum):
    """Which part of a layer's weight, (outputs, inputs), each device has."""

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
