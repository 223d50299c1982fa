"""Functions on paths that never raise, whatever the path is.

A name may be too long, contain a NUL, be a circular link or be in an unreadable folder; the user may have no
home folder, and the working folder may be removed. In all these cases `os.path.exists`, `isfile`, `isdir` and
`islink` return False, but the methods of `Path` raise, so no module calls these
(`tests/test_architecture.py`).
"""

from __future__ import annotations

import os
from pathlib import Path


def home() -> str:
    """The user's home folder; empty if neither $HOME nor the system's list of users has one."""
    folder = expanded("~")
    return "" if folder == "~" else folder


def expanded(text: str) -> str:
    """`text` with `~` replaced by the home folder; unchanged if that is unknown."""
    try:
        return os.path.expanduser(text)
    except ValueError:  # a NUL in a user's name
        return text


def working_folder() -> str:
    """The working folder; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def absolute(path: str | Path) -> Path:
    """The absolute path; unchanged if the working folder was removed."""
    return Path(working_folder(), path)


def resolved(path: str | Path) -> Path:
    """The path without links and `..`; unchanged if that fails."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return Path(path)


def listed(folder: str | Path, pattern: str = "*") -> list[Path]:
    """The sorted paths in a folder; none if there is no such folder or it is unreadable."""
    try:
        return sorted(Path(folder).glob(pattern))
    except (OSError, ValueError):
        return []


def by_name(path: str | Path) -> Path:
    """The path with a resolved folder and a name, also for `.`, `x/..` and `x/.`; a link keeps its name."""
    whole_path = absolute(path)
    if whole_path.name in ("", ".."):
        return resolved(whole_path)
    return resolved(whole_path.parent) / whole_path.name
