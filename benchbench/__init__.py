"""accelbench: measure and verify the same deep-learning work on every framework.

The functions do the same as the command line, but return objects and print nothing (docs/api.md). They are
defined in `benchbench.api`, which is loaded at the first use of one of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchbench.api import *  # noqa: F403 - the list of functions is there

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]


def __getattr__(name: str) -> Any:
    # Workers import this package under interpreters without its dependencies, and Python calls this
    # function before it imports a submodule.
    private = name.startswith("_") and name != "__all__"
    if private or find_spec(f"{__name__}.{name}"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from benchbench import api

    if name == "__all__":
        return list(api.FUNCTIONS)
    if name not in api.FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)
