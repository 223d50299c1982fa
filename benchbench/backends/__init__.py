"""Framework runtimes, one per file. The folder is the registry."""
