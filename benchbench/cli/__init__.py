"""The command line: one file per command. Only this package prints or exits."""

from benchbench.cli.program import main

__all__ = ["main"]
