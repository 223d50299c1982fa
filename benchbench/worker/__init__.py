"""Worker processes, which run the jobs of a measurement. A program: `python -m benchbench.worker`."""
