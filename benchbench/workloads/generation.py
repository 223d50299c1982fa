"""Inference steps of decoders: processing a prompt, and generating a token.

    @dataclass(frozen=True)
    class Gpt2Decode(Decode, Gpt2):
        summary = "generate a token with GPT-2 and a key-value cache"

The prompt's keys and values are in a cache of fixed length. Every step generates the token after the same
prompt and writes the same cache position again, so all steps do the same work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._programs import jax, tensorflow, torch
from benchbench.workloads.base import DeviceContext, Draw, Program
from benchbench.workloads.decoder import Decoder
from benchbench.workloads.steps import Inference

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

ROUNDING_WIDTH = 128  # a multiple of the heads of all tiny decoders


class Generation(Decoder, Inference):
    """The logits of one token."""

    @property
    def logits(self) -> int:
        return 1

    def rounding_size(self) -> Self:
        """As deep as the network and as wide as affordable, since longer sums have larger errors."""
        tiny = self.tiny()
        width = ROUNDING_WIDTH if self.width >= ROUNDING_WIDTH else tiny.width
        return replace(tiny, depth=self.depth, width=width)  # type: ignore[call-arg]  # each is a dataclass

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module`; the cache's tensors are written in place."""
        return torch.generation(self, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow operations on variables, including those of the cache."""
        return tensorflow.generation(self, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the weights; the step takes the cache's arrays and returns them."""
        return jax.generation(self, context, arrays)


class Prefill(Generation):
    """A prompt of `length` tokens: the logits of the next token, and the cache. Times the first token."""


class Decode(Generation):
    """The token at position `length` − 1, with the `length` − 1 tokens before it in the cache."""

    input_names = ("prompt", "tokens")
    samples_apart = False  # each sample has its own prompt in the cache, which inputs do not replace

    @property
    def rows(self) -> int:
        return 1

    def __post_init__(self) -> None:
        """Also raise UsageError if there is no prompt."""
        super().__post_init__()
        if self.length < 2:
            raise UsageError("length=1 leaves no prompt; it must be at least 2.")

    def is_input(self, name: str) -> bool:
        """The prompt is not an input, since it is in the cache."""
        return name == "tokens"

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """The prompt and the token after it."""
        prompt = draw.integers("prompt", self.batch, self.length - 1, below=self.vocabulary)
        return {"prompt": prompt, **super().inputs(draw)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Compute the whole sequence without a cache, like Prefill with one more token."""
        tokens = ops.np.concatenate([arrays["prompt"], arrays["tokens"]], axis=1)
        weights = {name: arrays[name] for name in self.weights()}
        return self.numpy(ops, weights, tokens, training=False)
