"""How accelbench was installed here, and so the line that adds a framework to it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from benchbench import paths

NAME = "accelbench"


def install_line(extra: str, origin: str | None = None) -> str:
    """What to type so that the extra's framework is there: `pip install -e '.[torch]'` in a clone.

    `origin`: the distribution's direct_url.json (PEP 610); by default that of the running accelbench.
    """
    from urllib.parse import unquote, urlsplit

    found = json.loads(origin or _origin() or "{}")
    url, wanted = found.get("url", ""), f"[{extra}]" if extra else ""
    if "dir_info" in found:
        folder = _shortest(Path(unquote(urlsplit(url).path)))
        editable = "-e " if found["dir_info"].get("editable") else ""
        return f"pip install {editable}{shlex.quote(folder + wanted)}"
    source = f"{NAME}{wanted} @ {url}" if url else f"{NAME}{wanted}"
    return f"pip install {shlex.quote(source)}"


def _origin() -> str | None:
    from importlib.metadata import PackageNotFoundError, distribution  # a tenth of a worker's start

    try:
        return distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # run from a source tree
        folder = Path(__file__).parents[2]
        return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})


def _shortest(folder: Path) -> str:
    """`.` in the folder itself, else the absolute path."""
    return "." if paths.resolved(folder) == paths.resolved(os.curdir) else str(folder)
