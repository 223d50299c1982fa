"""Durations of different forms of convolutions in JAX, on this CPU.

    python -m studies.jax_convolutions > studies/output/jax_convolutions.md

Times the convolution of the suite `quick` in several layouts and forms of padding, and layers of ResNet-50
with both gradients. 1 × 1 convolutions are also written as products. XLA compiles each form by default and
without its YNN fusions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from studies.alternating import alternated, lines

NHWC = ("NHWC", "HWIO", "NHWC")
WITHOUT_YNN = {"xla_cpu_experimental_ynn_fusion_type": ""}
LAYERS = {  # batch, side, input channels, output channels, kernel, stride
    "1 × 1, 56², 64 → 256": (1, 56, 64, 256, 1, 1),
    "1 × 1, 14², 1024 → 256": (1, 14, 1024, 256, 1, 1),
    "1 × 1, 7², 512 → 2048": (1, 7, 512, 2048, 1, 1),
    "3 × 3, 56², 64": (1, 56, 64, 64, 3, 1),
    "3 × 3, 14², 256": (1, 14, 256, 256, 3, 1),
    "3 × 3, stride 2, 28², 256": (1, 28, 256, 256, 3, 2),
    "7 × 7, stride 2, 224², 3 → 64": (1, 224, 3, 64, 7, 2),
}


def random_array(*shape: int) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))


def compiled_call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], object]:
    """Return a call of the compiled function that waits for its result."""
    import jax

    compiled = jax.jit(function, **options)
    return lambda: compiled(*arguments).block_until_ready()


def forms() -> dict[str, Callable[[], object]]:
    """Return forms of one convolution: eight images of 28 × 28, 64 channels, 64 filters of 3 × 3."""
    import jax.numpy as jnp
    from jax import lax

    images, filters, edges = random_array(8, 28, 28, 64), random_array(3, 3, 64, 64), [(1, 1), (1, 1)]

    def convolve(orders: tuple[str, str, str], padding: Any) -> Callable[[Any, Any], Any]:
        return lambda x, w: lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=orders)

    def padded(x: Any, w: Any) -> Any:
        return convolve(NHWC, "VALID")(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), w)

    def product(x: Any, w: Any) -> Any:
        wide = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = [wide[:, row : row + 28, column : column + 28] for row in range(3) for column in range(3)]
        return jnp.concatenate(shifted, -1) @ w.reshape(-1, 64)

    first, first_filters = images.transpose(0, 3, 1, 2), filters.transpose(3, 2, 0, 1)
    outputs_first = filters.transpose(3, 0, 1, 2)
    return {
        "NHWC, HWIO, edges given": compiled_call(convolve(NHWC, edges), images, filters),
        "the same without YNN": compiled_call(
            convolve(NHWC, edges), images, filters, compiler_options=WITHOUT_YNN
        ),
        "SAME": compiled_call(convolve(NHWC, "SAME"), images, filters),
        "jnp.pad and VALID": compiled_call(padded, images, filters),
        "NCHW, OIHW": compiled_call(convolve(("NCHW", "OIHW", "NCHW"), edges), first, first_filters),
        "NHWC, OHWI": compiled_call(convolve(("NHWC", "OHWI", "NHWC"), edges), images, outputs_first),
        "patches and a product": compiled_call(product, images, filters),
    }


def layer(
    batch: int, side: int, inputs: int, outputs: int, kernel: int, stride: int
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Yield the name, function and arguments of the forward pass and of both gradients."""
    import jax
    from jax import lax

    x, w = random_array(batch, side, side, inputs), random_array(kernel, kernel, inputs, outputs)

    def convolution(x: Any, w: Any) -> Any:
        edges = [(kernel // 2, kernel // 2)] * 2
        return lax.conv_general_dilated(x, w, (stride, stride), edges, dimension_numbers=NHWC)

    functions = {"convolution": convolution}
    if kernel == 1:
        functions["product"] = lambda x, w: x @ w[0, 0]
    upstream = random_array(*convolution(x, w).shape)
    for name, function in functions.items():
        yield f"{name}", function, (x, w)
        yield (
            f"{name}, gradient of the images",
            lambda x, w, dy, function=function: jax.vjp(lambda x: function(x, w), x)[1](dy)[0],
            (x, w, upstream),
        )
        yield (
            f"{name}, gradient of the filters",
            lambda x, w, dy, function=function: jax.vjp(lambda w: function(x, w), w)[1](dy)[0],
            (x, w, upstream),
        )


def main() -> None:
    """Print a table for each convolution."""
    os.environ.setdefault("NPROC", "2")
    import jax

    print(f"jax {jax.__version__}, two threads, float32\n\n## The convolution of `quick`")
    print("\n".join(lines(alternated(forms()), "NHWC, HWIO, edges given")))
    for title, sizes in LAYERS.items():
        functions = {}
        for name, function, arguments in layer(*sizes):
            functions[name] = compiled_call(function, *arguments)
            functions[f"{name}, without YNN"] = compiled_call(
                function, *arguments, compiler_options=WITHOUT_YNN
            )
        print(f"\n## {title}\n" + "\n".join(lines(alternated(functions, 9, 0.03), "convolution")), flush=True)


if __name__ == "__main__":
    main()
