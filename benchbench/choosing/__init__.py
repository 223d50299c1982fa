"""Hardware compared by the runs of several machines. Pure."""
