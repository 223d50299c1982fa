"""Which machine of its type this is, and who uses it: hashes that name neither."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import os
import re
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchbench.machine.kernel import read_text

GENERIC = ("", "localhost", "root")  # names that say nothing of anybody
NAME_DIGITS = 4
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


def own_names() -> set[str]:
    """The names of this machine and of who uses it, as a text may have them."""
    host = socket.gethostname()
    found = {host, host.partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        found.add(getpass.getuser())
    with suppress(OSError, KeyError, ImportError):
        import pwd

        full_name = pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0]
        found |= {word for word in full_name.split() if len(word) > 2}
    return found - set(GENERIC)


def name_hashes() -> tuple[str, ...]:
    """`SALT:HASH` for each name: whoever shares the run elsewhere finds them in its texts by these.

    A hash has 16 bits: of all words one in 65,536 has the same, so none is proved to be the name.
    """
    salt = secrets.token_hex(4)
    return tuple(sorted(f"{salt}:{_name_hash(salt, name)}" for name in own_names()))


def is_hashed(word: str, hashes: Iterable[str]) -> bool:
    """Whether the text is a name that one of the hashes is of, in capitals or not."""
    return any(known == _name_hash(salt, word) for salt, _, known in (each.partition(":") for each in hashes))


def _name_hash(salt: str, name: str) -> str:
    return hashlib.sha256(f"{PURPOSE}\n{salt}\n{name.lower()}".encode()).hexdigest()[:NAME_DIGITS]
