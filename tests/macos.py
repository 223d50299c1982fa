"""Run a module as on macOS: `python macos.py EXECUTABLE [-P] -m MODULE ARGUMENT…`.

`sys.platform` is darwin, /proc and /sys are hidden, and functions that macOS lacks are missing. Further
processes of Python are started by EXECUTABLE, which is to run this file, too.
"""

import os
import pathlib
import runpy
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

HIDDEN = ("/proc", "/sys")
MISSING = ("waitid", "pidfd_open", "sched_getaffinity", "sched_setaffinity")


def is_hidden(path: object) -> bool:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return any(str(text) == folder or str(text).startswith(f"{folder}/") for folder in HIDDEN)


def hiding(function: Callable[..., Any], absent: Callable[[object], Any]) -> Callable[..., Any]:
    """The function, with `absent` for hidden paths."""
    return lambda path, *arguments, **named: (
        absent(path) if is_hidden(path) else function(path, *arguments, **named)
    )


def not_found(path: object) -> Any:
    raise FileNotFoundError(2, "No such file or directory", str(path))


def pretend(executable: str) -> None:
    """Make this process look like one on macOS."""
    import psutil  # noqa: F401 - reads the /proc of Linux; on macOS it has other sources

    sysconfig.get_config_vars()  # read from a file that is named after the platform
    proxies = ModuleType("_scproxy")  # macOS's settings
    vars(proxies).update(_get_proxy_settings=dict, _get_proxies=dict)
    sys.modules["_scproxy"] = proxies
    sys.platform = "darwin"
    sys.executable = executable
    for name in MISSING:
        delattr(os, name)
    for name in ("exists", "isfile", "isdir"):
        setattr(os.path, name, hiding(getattr(os.path, name), lambda path: False))
    os.open = hiding(os.open, not_found)
    for name in ("open", "read_text", "iterdir", "write_text"):
        setattr(pathlib.Path, name, hiding(getattr(pathlib.Path, name), not_found))
    glob = pathlib.Path.glob
    pathlib.Path.glob = lambda path, pattern: (  # type: ignore[method-assign, assignment]
        found for found in (() if is_hidden(path) else glob(path, pattern)) if not is_hidden(found)
    )


if __name__ == "__main__":
    executable, *arguments = sys.argv[1:]
    module, *arguments = arguments[arguments.index("-m") + 1 :]
    pretend(executable)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
