"""References to user functions for workers: by name, in a file, or pickled.

Standard library only, since workers import this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PYTHON = "python"  # backend that does not wait for a device
FUNCTIONS = "functions"  # suite name of cases that call a user's function
MODEL, INPUTS = "model", "inputs"  # parts of a user's model file


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionLocation:
    """Location of a function: `qualname` in a module or Python file, or pickled in a file of the job.

    `name` is used in messages and as the workload of the case. `part`: instead, the torch module in a file as
    a function, or the function that returns its inputs (MODEL, INPUTS).
    """

    name: str
    module: str = ""
    path: str = ""
    qualname: str = ""
    pickled: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function with its arguments. The result of `setup` is passed after `arguments`, a file name.

    `search_path` is put before the worker's `sys.path`, `folder` is the working directory, and `files` has
    the pickled data by file name.
    """

    function: FunctionLocation
    setup: FunctionLocation | None = None
    arguments: str = ""
    search_path: tuple[str, ...] = ()
    folder: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)

    def renamed(self, name: str) -> Call:
        """The same call under another name."""
        return replace(self, function=replace(self.function, name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether two functions return the same for equal inputs; None if that could not be examined.

    `inputs`: number of different inputs that were compared.
    """

    equal: bool | None
    reason: str
    inputs: int = 0
