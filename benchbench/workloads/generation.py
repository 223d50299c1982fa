"""What is measured of a decoder besides training: reading a prompt, and generating a token.

    @dataclass(frozen=True)
    class Gpt2Decode(Decode, Gpt2):
        summary = "generate a token with GPT-2 and a key-value cache"

A prompt's keys and values go into a cache of fixed length. A token is always the one after the same prompt:
the step writes the same place of the cache again, so that no step does more work than another.
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

ROUNDING_WIDTH = 128  # a multiple of any tiny decoder's heads


class Generation(Decoder, Inference):
    """The logits of one token."""

    @property
    def logits(self) -> int:
        return 1

    def rounding_size(self) -> Self:
        """As deep as the network, and as wide as is affordable: longer sums have larger errors."""
        tiny = self.tiny()
        width = ROUNDING_WIDTH if self.width >= ROUNDING_WIDTH else tiny.width
        return replace(tiny, depth=self.depth, width=width)  # type: ignore[call-arg]  # each is a dataclass

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module`; the cache's tensors are written in place."""
        return torch.generation(self, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow's operations on variables, those of the cache among them."""
        return tensorflow.generation(self, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the weights; the cache's arrays are given to the step, and back."""
        return jax.generation(self, context, arrays)


class Prefill(Generation):
    """A prompt of `length` tokens: the logits of the token after it, and the cache. Time to first token."""


class Decode(Generation):
    """The token at position `length` − 1, with the `length` − 1 before it in the cache."""

    input_names = ("prompt", "tokens")
    samples_apart = False  # each has its own prompt in the cache, which inputs do not replace

    @property
    def rows(self) -> int:
        return 1

    def __post_init__(self) -> None:
        """Raise UsageError also where there is no prompt."""
        super().__post_init__()
        if self.length < 2:
            raise UsageError("length=1 leaves no prompt: it must be at least 2.")

    def is_input(self, name: str) -> bool:
        """The prompt is in the cache."""
        return name == "tokens"

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """The prompt, and the token after it."""
        prompt = draw.integers("prompt", self.batch, self.length - 1, below=self.vocabulary)
        return {"prompt": prompt, **super().inputs(draw)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Without a cache, the whole sequence is computed, as Prefill of one token more."""
        tokens = ops.np.concatenate([arrays["prompt"], arrays["tokens"]], axis=1)
        weights = {name: arrays[name] for name in self.weights()}
        return self.numpy(ops, weights, tokens, training=False)
