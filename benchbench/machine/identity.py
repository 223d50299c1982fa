"""Which machine of its type this is: an id that names neither it nor its user."""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
from pathlib import Path

from benchbench.machine.kernel import read_text

PURPOSE = "accelbench"  # other programs that hash the same key get other ids: systemd, machine-id(5)
DIGITS = 16


def machine_id(root: Path = Path("/"), host: str | None = None) -> str:
    """16 hex digits, the same for every run on this machine; empty where the system has no id of its own.

    HMAC-SHA256 whose key is /etc/machine-id, 128 random bits, over the name of the host, since machines that
    were cloned share that file. A container without the file has the kernel's boot id as its key: all of one
    machine are one machine, until it starts again.
    """
    key = read_text(root / "etc/machine-id").strip()
    if re.fullmatch("[0-9a-f]{32}", key):  # else it is empty, or says that it has yet to be made
        return _hashed(key, host or socket.gethostname())
    key = read_text(root / "proc/sys/kernel/random/boot_id").strip()
    return _hashed(key) if key else ""


def _hashed(key: str, *more: str) -> str:
    message = "\n".join((PURPOSE, *more)).encode()
    return hmac.new(key.encode(), message, hashlib.sha256).hexdigest()[:DIGITS]
