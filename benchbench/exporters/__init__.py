"""Output formats, one per file. The folder is the registry."""
