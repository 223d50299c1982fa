"""A model that lives in memory, as in a notebook, written to a file for workers to import as a user's."""

from __future__ import annotations

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

MOST_BYTES = 4 * 2**30  # of a model with its inputs
OBJECTS = "objects.pickle"
SOURCE = '''"""A model that lived in memory, as cloudpickle wrote it."""

import sys
from pathlib import Path

import torch
from cloudpickle import loads

sys.path += [each for each in {search_path!r} if each not in sys.path]
globals().update(loads(Path(__file__).with_name({objects!r}).read_bytes()))
'''
IN_A_FILE = "A model that a file defines need not be sent: benchbench.run(model='my_model.py')."


@contextmanager
def written(
    name: str, module: Any, inputs: Any, training: Mapping[str, Callable[..., Any] | None]
) -> Iterator[Path]:
    """The file of a torch module, as long as it is needed.

    `inputs`: a function, or what it would return. `training`: the loss, targets and optimizer, as far as they
    are not None. Raises UsageError for what is no torch module, or cannot be sent.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"{module!r:.50} is no torch module: its type is {type(module).__name__}.", IN_A_FILE
        )
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a model.", "Give it letters, digits and _: name='my_model'.")
    here = {
        "model": deepcopy(module).cpu(),
        "inputs": inputs if callable(inputs) else lambda: inputs,
        **{each: function for each, function in training.items() if function is not None},
    }
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns of how its own tensors are pickled
            pickled = by_value(here, name, MOST_BYTES)
    except UsageError as error:
        raise UsageError(str(error), IN_A_FILE) from error
    search_path = [str(paths.absolute(each)) for each in sys.path]
    with tempfile.TemporaryDirectory(prefix="accelbench-model-") as folder:
        (Path(folder) / OBJECTS).write_bytes(pickled)
        file = Path(folder) / f"{name}.py"
        file.write_text(SOURCE.format(search_path=search_path, objects=OBJECTS), encoding="utf-8")
        yield file
