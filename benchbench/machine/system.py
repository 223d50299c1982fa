"""Which systems measurements are made on, and what is missing where it is not Linux."""

from __future__ import annotations

import os
from pathlib import Path

from benchbench.errors import UnsupportedSystem

LINUX, MACOS = "linux", "darwin"  # sys.platform


def check_system(platform: str, root: Path = Path("/")) -> None:
    """Raise UnsupportedSystem where there is no fork, or on Linux no /proc.

    A case gets its process by a fork; /proc tells which processes are left of it, and what memory there is.
    """
    if platform == LINUX and not os.path.exists(root / "proc/self"):
        raise UnsupportedSystem(
            "accelbench needs /proc, and it is not mounted here.",
            "mount -t proc proc /proc mounts it; a container has it unless it was told otherwise.",
        )
    if platform in {"win32", "cygwin", "emscripten", "wasi"}:
        raise UnsupportedSystem(
            f"accelbench needs a system that can fork processes; {platform} cannot.",
            "On Windows it runs in WSL 2, as on Linux.",
        )


def limits(platform: str) -> str:
    """One line on what is missing on this system; empty on Linux."""
    if platform == LINUX:
        return ""
    name = "macOS" if platform == MACOS else platform
    return (
        f"{name} is not tested: cases are timed and verified as on Linux, but telemetry and peaks of host "
        "memory are missing, threads are not pinned, and processes that a case leaves behind may stay"
    )
