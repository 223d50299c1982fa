"""The command line: a file per subject. Only this package prints or exits."""

from benchbench.cli.program import main

__all__ = ["main"]
