"""One file per workload; the folder is the registry."""
