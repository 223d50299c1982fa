"""Models in memory, as in a notebook, written to files that workers import like the user's own."""

from __future__ import annotations

import inspect
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from benchbench import paths
from benchbench.errors import UsageError
from benchbench.launch.functions import pickled
from benchbench.model.user_model import EQUINOX, JAX_MODULES, classes_imported

MAX_MODEL_BYTES = 4 * 2**30  # of a model with its inputs
OBJECTS = "objects.pickle"
SOURCE = '''"""A model from the memory of another process, pickled by cloudpickle."""

import sys
from pathlib import Path

import {framework}
from cloudpickle import loads

sys.path += [folder for folder in {search_path!r} if folder not in sys.path]
globals().update(loads(Path(__file__).with_name({objects!r}).read_bytes()))
'''
FILE_HINT = "A model that a file defines need not be sent: benchbench.run(model='my_model.py')."


@contextmanager
def model_file(
    name: str, module: Any, inputs: Any, training: Mapping[str, Callable[..., Any] | None]
) -> Iterator[Path]:
    """Write a model to a temporary file, which exists inside the context.

    `module`: see `_framework_and_names`. `inputs`: a function, or its result. `training`: the functions
    `loss`, `targets` and `optimizer`, or None for missing ones.

    Raises UsageError for an object of another type, or if a part cannot be sent.
    """
    framework, model = _framework_and_names(module)
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a model.", "Give it letters, digits and _: name='my_model'.")
    names = {
        **model,
        "inputs": inputs if callable(inputs) else lambda: inputs,
        **{function_name: function for function_name, function in training.items() if function is not None},
    }
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns of the way its tensors are pickled
            content = pickled(names, name, MAX_MODEL_BYTES)
    except UsageError as error:
        raise UsageError(str(error), FILE_HINT) from error
    source = SOURCE.format(
        framework=framework,
        search_path=[str(paths.absolute(entry)) for entry in sys.path],
        objects=OBJECTS,
    )
    with tempfile.TemporaryDirectory(prefix="accelbench-model-") as folder:
        (Path(folder) / OBJECTS).write_bytes(content)
        file = Path(folder) / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        yield file


def _framework_and_names(module: Any) -> tuple[str, dict[str, Any]]:
    """The package of a model, and the objects by name that its file defines.

    `module`: a torch module; a Keras model or its class; a module of flax or equinox; or a pair of a JAX
    function (or flax.linen module) and its parameters. Raises UsageError for another type.
    """
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    # First Keras, whose models on torch are torch modules, too.
    if keras and (
        isinstance(module, keras.Model) or (inspect.isclass(module) and issubclass(module, keras.Model))
    ):
        return "keras", {"model": module}
    if torch and isinstance(module, torch.nn.Module):
        return "torch", {"model": deepcopy(module).cpu()}
    if "jax" in sys.modules:
        if isinstance(module, tuple) and len(module) == 2 and callable(module[0]):
            return "jax", {"model": module[0], "params": module[1]}
        if isinstance(module, classes_imported([EQUINOX])) and type(module).__module__ == "__main__":
            # Unpickling creates the class before its fields, so it would be registered with JAX without any.
            raise UsageError(
                f"An equinox class that is defined here cannot be sent: {type(module).__name__}.",
                "Define it in a file: benchbench.run(model='my_model.py').",
            )
        if isinstance(module, classes_imported(JAX_MODULES)):
            return "jax", {"model": module}
    raise UsageError(
        f"{module!r:.50} is no model, but a {type(module).__name__}.",
        f"Give a torch module, a Keras model, or a pair of a JAX function and its parameters. {FILE_HINT}",
    )
