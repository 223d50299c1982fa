"""Environments and what building one takes, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchbench.documents.document import Cell, Content, Document, number, table
from benchbench.environments import interpreters
from benchbench.environments.build import BuildPlan
from benchbench.environments.interpreters import Found
from benchbench.format import size


def environments_document(found: Sequence[Found]) -> Document:
    """A row per environment: the versions of what was asked for, the size, and what is wrong."""
    fields = [_fields(each) for each in found]
    return Document(
        name="environments",
        title="Environments",
        tables=(table(map(_row, found, fields)),),
        data=fields,
    )


def _row(found: Found, fields: dict[str, Any]) -> dict[str, Content]:
    record = found.record
    main = [f"{name} {record.packages.get(name, '?')}" for name in record.main] if record else []
    return {
        "name": found.name,
        "versions": ", ".join(main) or "–",
        "python": record.python if record else "–",
        "size": number(fields["bytes"], "B"),
        "health": found.health,
        "note": found.reason,
    }


def _fields(found: Found) -> dict[str, Any]:
    """For programs, with every package."""
    record = found.record
    return {
        "name": found.name,
        "backend": found.backend,
        "health": found.health,
        "reason": found.reason,
        "interpreter": found.python,
        "bytes": record.bytes
        if record
        else interpreters.bytes_in(interpreters.environment_folder(found.name)),
        "python": record.python if record else None,
        "created": record.created if record else None,
        "requirements": record.requirements if record else (),
        "main": record.main if record else (),
        "packages": record.packages if record else {},
    }


def download_document(plan: BuildPlan) -> Document:
    """A row per file that pip would install, and what an environment of them takes."""
    request, download = plan.request, plan.download
    rows = [
        {
            "package": each.name,
            "version": each.version,
            "size": Cell(("not known",)) if each.bytes is None else number(each.bytes, "B"),
            "from": "the index" if each.remote else "this machine",
        }
        for each in download.packages
    ]
    totals = {"download_bytes": download.remote_bytes, "disk_bytes": download.disk_bytes}
    return Document(
        name="download",
        title=f"What {request.name} takes",
        tables=(table(rows, notes=takes(plan)),),
        data={"name": request.name, **asdict(request), **totals, **asdict(download)},
    )


def takes(plan: BuildPlan) -> list[str]:
    """What an environment takes, in a few lines."""
    request, download = plan.request, plan.download
    unknown = f", {download.unknown} of unknown size" if download.unknown else ""
    fetched = f"{size(download.remote_bytes)} to download, less what is in pip's cache"
    remote = any(each.remote for each in download.packages)
    free = f"{size(download.free_bytes)} are free"
    whose = "torch's build" if request.torch_build else "the build"
    build = f", {whose} for {request.variant} (--variant)" if request.variant else ""
    return [
        f"{request.name}: {', '.join(request.requirements)}{build}",
        f"{len(download.packages)} packages{unknown}",
        fetched if remote else "nothing to download: they are on this machine",
        f"about {size(download.disk_bytes)} on disk in {plan.where}, where {free}",
    ]
