"""One file per framework runtime; the folder is the registry."""
