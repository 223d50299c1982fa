"""A user's function as its workers find it again: by name, in its file, or sent by value.

Standard library only: workers import this too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PYTHON = "python"  # the backend that waits for nothing
FUNCTIONS = "functions"  # the suite of cases that call a user's function


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a function is: `qualname` in a module or a Python file, or pickled in a file of the job.

    `name`: as messages have it, and as the workload of a case.
    """

    name: str
    module: str = ""
    path: str = ""
    qualname: str = ""
    pickled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function and what it is called with. What `setup` returns comes after the `arguments`, a file's name.

    `search_path`: before what the worker's `sys.path` has. `folder`: the one it is called in. `files`: what
    was pickled, by name.
    """

    function: Found
    setup: Found | None = None
    arguments: str = ""
    search_path: tuple[str, ...] = ()
    folder: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)

    def renamed(self, name: str) -> Call:
        """The same under another name."""
        return replace(self, function=replace(self.function, name=name))
