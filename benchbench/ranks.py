"""The program for launchers: `torchrun … -m benchbench.ranks …` (docs/devices.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchbench.cli.program import main

if TYPE_CHECKING:
    import typer


def _ranks() -> typer.Typer:
    from benchbench.cli.run import ranks

    return ranks


if __name__ == "__main__":
    main(_ranks, "python -m benchbench.ranks")
