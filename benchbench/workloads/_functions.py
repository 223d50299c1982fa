"""Operations whose step is one function of all their arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

    Step = Callable[..., Any]


class FunctionOperation(Operation):
    """Operation whose step takes the arrays in order.

    A class names each framework's function in `functions`, or overrides the method that returns it.
    """

    functions: ClassVar[Mapping[str, str]] = {}  # framework → import path, such as `torch.nn.functional:relu`

    def torch(self) -> Step:
        """Step in torch, for NCHW images in the session's layout."""
        return resolve_name(self.functions["torch"])  # type: ignore[no-any-return]

    def tensorflow(self) -> Step:
        """Step in TensorFlow, for NHWC images."""
        return resolve_name(self.functions["tensorflow"])  # type: ignore[no-any-return]

    def jax(self) -> Step:
        """Step in JAX, for NHWC images."""
        return resolve_name(self.functions["jax"])  # type: ignore[no-any-return]

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.torch(), tuple(map(context.put, arrays.values())))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.tensorflow(), tuple(map(context.put, arrays.values())))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.jax(), tuple(map(context.put, arrays.values())))
