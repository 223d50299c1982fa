"""What is wrong with stored files, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """`line` counts from 1; 0: of the file as a whole."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Validation:
    """`remarks`: what is no fault and worth knowing, such as that a run was interrupted."""

    files: int
    faults: tuple[Fault, ...]
    remarks: tuple[Fault, ...] = ()


def joined(found: list[Validation]) -> Validation:
    """All of them as one."""
    return Validation(
        sum(each.files for each in found),
        tuple(fault for each in found for fault in each.faults),
        tuple(remark for each in found for remark in each.remarks),
    )
