"""Environments and their packages as rows, fields and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchbench.documents.lists import Rows
from benchbench.environments import interpreters
from benchbench.environments.interpreters import Found
from benchbench.environments.wheels import Download
from benchbench.format import size, visible


def rows(found: Sequence[Found]) -> Rows:
    """A row per environment: the versions of what was asked for, the size, and what is wrong."""
    found_rows = []
    for each, field in zip(found, fields(found), strict=True):
        record = each.record
        main = [f"{name} {record.packages.get(name, '?')}" for name in record.main] if record else []
        found_rows.append(
            {
                "name": each.name,
                "versions": ", ".join(main) or "–",
                "python": record.python if record else "–",
                "size": size(field["bytes"]),
                "health": each.health,
                "note": each.reason,
            }
        )
    return found_rows


def fields(found: Sequence[Found]) -> list[dict[str, Any]]:
    """The same for programs, with every package."""
    return [
        {
            "name": each.name,
            "backend": each.backend,
            "health": each.health,
            "reason": each.reason,
            "interpreter": each.python,
            "bytes": each.record.bytes
            if each.record
            else interpreters.bytes_in(interpreters.place(each.name)),
            "python": each.record.python if each.record else None,
            "created": each.record.created if each.record else None,
            "requirements": each.record.requirements if each.record else (),
            "main": each.record.main if each.record else (),
            "packages": each.record.packages if each.record else {},
        }
        for each in found
    ]


def packages(download: Download) -> Rows:
    """A row per file that pip would install."""
    return [
        {
            "package": each.name,
            "version": each.version,
            "size": "not known" if each.bytes is None else size(each.bytes),
            "from": "the index" if each.remote else "this machine",
        }
        for each in download.packages
    ]


def download(name: str, requirements: Sequence[str], found: Download, where: Path) -> str:
    """What an environment takes, in a few lines."""
    unknown = f", {found.unknown} of unknown size" if found.unknown else ""
    fetched = f"{size(found.remote_bytes)} to download, less what is in pip's cache"
    remote = any(each.remote for each in found.packages)
    lines = [
        f"{name}: {', '.join(requirements)}",
        f"{len(found.packages)} packages{unknown}",
        fetched if remote else "nothing to download: they are on this machine",
        f"about {size(found.disk_bytes)} on disk in {where}, where {size(found.free_bytes)} are free",
    ]
    return "".join(f"{visible(line)}\n" for line in lines)
