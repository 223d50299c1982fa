"""Questions about paths that somebody else names: they are answered whatever the path is, and never raise.

A name may be too long, hold a NUL, lead in a circle or into a folder that nobody may read; the user may have
no home, and the working folder may be gone. Whether something is there is asked of `os.path.exists`,
`isfile`, `isdir` and `islink`, which answer False in all these cases. The methods of `Path` raise, so no
module calls them (`tests/test_architecture.py`).
"""

from __future__ import annotations

import os
from pathlib import Path


def home() -> str:
    """The user's home; empty where neither $HOME nor the system's list of users has one."""
    found = expanded("~")
    return "" if found == "~" else found


def expanded(text: str) -> str:
    """`text` with the home that its `~` stands for; as it is where nobody knows that home."""
    try:
        return os.path.expanduser(text)
    except ValueError:  # a NUL in a user's name
        return text


def working_folder() -> str:
    """The working folder; empty where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def absolute(path: str | Path) -> Path:
    """The same place from the root on; as it is where the working folder was removed."""
    return Path(working_folder(), path)


def resolved(path: str | Path) -> Path:
    """The same place without links and `..`; as it is where that cannot be told."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return Path(path)


def listed(folder: str | Path, pattern: str = "*") -> list[Path]:
    """What a folder holds, in order; nothing where there is no such folder or it may not be read."""
    try:
        return sorted(Path(folder).glob(pattern))
    except (OSError, ValueError):
        return []


def by_name(path: str | Path) -> Path:
    """The same place by its name in its folder, also for `.`, `x/..` and `x/.`; a link keeps its own name."""
    whole = absolute(path)
    return resolved(whole) if whole.name in ("", "..") else resolved(whole.parent) / whole.name
