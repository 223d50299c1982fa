"""Parse, call one function, print, exit: the only package that prints or exits. A file per command."""

from benchbench.cli.program import main

__all__ = ["main"]
