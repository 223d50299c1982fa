"""A user's files as they are now: Python would take one for unchanged that has the same second and size."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.machinery import SourceFileLoader as Cached
from pathlib import Path

INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders of packages that nobody edits


class UncachedLoader(Cached):
    """Compiles a file whenever it is imported, and keeps no bytecode of it."""

    def path_stats(self, path: str) -> dict[str, float]:
        """Raises OSError: without the time of a file, nothing that was kept of it is looked for."""
        raise OSError(path)


@cache
def import_from(folder: str) -> None:
    """Look into a folder first when something is imported; compile anew what is in it and not installed."""

    def finder(path: str) -> FileFinder:
        where = Path(path)
        is_installed = INSTALLED & {*where.parts} or where.is_relative_to(sys.base_prefix)
        if is_installed or not where.is_relative_to(folder) or not os.path.isdir(path):
            raise ImportError(path)
        kinds = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (UncachedLoader, SOURCE_SUFFIXES))
        return FileFinder(path, *kinds)

    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.path_hooks.insert(0, finder)
    for known in [path for path in sys.path_importer_cache if Path(path).is_relative_to(folder)]:
        del sys.path_importer_cache[known]
