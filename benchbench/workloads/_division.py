"""How a layer's weight is divided by tensor parallelism, as data: Shoeybi et al. 2019, "Megatron-LM", 3."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Division(StrEnum):
    """What each device has of a weight, (outputs, inputs), of what it is given, and of what it gives."""

    COLUMNS = "columns"  # some outputs, of all inputs; they stay where they are
    HEADS = "heads"  # the same of queries, keys and values in one weight: those of some heads
    ROWS = "rows"  # some inputs, which are there; the sums over them are added up
    VOCABULARY = "vocabulary"  # some rows of a table; what is looked up is added up
    LOGITS = "logits"  # some outputs, of all inputs; the loss is computed where they are


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
