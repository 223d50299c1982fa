"""The command line: a file per command, small ones together. Only this package prints or exits."""

from benchbench.cli.program import main

__all__ = ["main"]
