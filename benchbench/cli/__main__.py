"""`python -m benchbench.cli`."""

from benchbench.cli import main

main()
