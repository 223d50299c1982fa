"""The command line, a file for each command: the only package that prints or exits."""

from benchbench.cli.program import main

__all__ = ["main"]
