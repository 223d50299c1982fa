"""Import of user files without bytecode caching.

Python's cache treats a file as unchanged if its size and modification time in seconds are the same. A file
that was edited within a second would be missed.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.machinery import SourceFileLoader as CachingLoader
from pathlib import Path

INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders of packages that users do not edit


class UncachedLoader(CachingLoader):
    """Source loader that compiles a file on every import and writes no bytecode."""

    def path_stats(self, path: str) -> dict[str, float]:
        """Raise OSError: without a modification time, Python does not look for cached bytecode."""
        raise OSError(path)


@cache
def prefer_folder(folder: str) -> None:
    """Import from a folder first, and compile its files anew on every import unless they are installed."""

    def finder(path: str) -> FileFinder:
        location = Path(path)
        is_installed = INSTALLED & {*location.parts} or location.is_relative_to(sys.base_prefix)
        if is_installed or not location.is_relative_to(folder) or not os.path.isdir(path):
            raise ImportError(path)
        loaders = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (UncachedLoader, SOURCE_SUFFIXES))
        return FileFinder(path, *loaders)

    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.path_hooks.insert(0, finder)
    for cached_path in [path for path in sys.path_importer_cache if Path(path).is_relative_to(folder)]:
        del sys.path_importer_cache[cached_path]
