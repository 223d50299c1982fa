"""The child's side of a run. A program, imported by no other part; `python -m benchbench.worker`."""
