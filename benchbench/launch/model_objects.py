"""A model that lives in memory, as in a notebook, written to a file for workers to import as a user's."""

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
from benchbench.launch.functions import by_value
from benchbench.model.user_model import EQUINOX, MODULES_OF_JAX, classes_imported

MOST_BYTES = 4 * 2**30  # of a model with its inputs
OBJECTS = "objects.pickle"
SOURCE = '''"""A model that lived in memory, as cloudpickle wrote it."""

import sys
from pathlib import Path

import {framework}
from cloudpickle import loads

sys.path += [each for each in {search_path!r} if each not in sys.path]
globals().update(loads(Path(__file__).with_name({objects!r}).read_bytes()))
'''
IN_A_FILE = "A model that a file defines need not be sent: benchbench.run(model='my_model.py')."


@contextmanager
def written(
    name: str, module: Any, inputs: Any, training: Mapping[str, Callable[..., Any] | None]
) -> Iterator[Path]:
    """The file of a model, as long as it is needed.

    `module`: see `_named_in_file`. `inputs`: a function, or what it would return. `training`: the loss,
    targets and optimizer, as far as they are not None. Raises UsageError for what is no model, or cannot be
    sent.
    """
    framework, model = _named_in_file(module)
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a model.", "Give it letters, digits and _: name='my_model'.")
    here = {
        **model,
        "inputs": inputs if callable(inputs) else lambda: inputs,
        **{each: function for each, function in training.items() if function is not None},
    }
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns of how its own tensors are pickled
            pickled = by_value(here, name, MOST_BYTES)
    except UsageError as error:
        raise UsageError(str(error), IN_A_FILE) from error
    source = SOURCE.format(
        framework=framework,
        search_path=[str(paths.absolute(each)) for each in sys.path],
        objects=OBJECTS,
    )
    with tempfile.TemporaryDirectory(prefix="accelbench-model-") as folder:
        (Path(folder) / OBJECTS).write_bytes(pickled)
        file = Path(folder) / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        yield file


def _named_in_file(module: Any) -> tuple[str, dict[str, Any]]:
    """The package that a model is written in, and what the file of it defines.

    A torch module; a Keras model, or the class of one; a module of flax or equinox; or a JAX function, or a
    module of flax's linen, in a pair with its parameters. Raises UsageError for anything else.
    """
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    # First Keras: a model of it on torch is a torch module as well.
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
            # Sent by value, its class is made without its fields first, and JAX is told of none.
            raise UsageError(
                f"A class of equinox's that is defined here cannot be sent: {type(module).__name__}.",
                "Define it in a file: benchbench.run(model='my_model.py').",
            )
        if isinstance(module, classes_imported(MODULES_OF_JAX)):
            return "jax", {"model": module}
    raise UsageError(
        f"{module!r:.50} is no model: its type is {type(module).__name__}.",
        f"Give a torch module, a Keras model, or a pair of a JAX function and its parameters. {IN_A_FILE}",
    )
