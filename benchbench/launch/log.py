"""The end of what a worker prints: read as it comes, so that nothing grows on a disk and no worker waits."""

from __future__ import annotations

import os
from contextlib import suppress
from select import select
from threading import Lock, Thread

MOST_BYTES = 4096  # that are kept
CHUNK, CHUNKS = 65_536, 16  # read at once: a worker that floods must not keep others from the lock


class LogTail:
    """A pipe, and the thread that empties it. `writer`: for the worker's standard output and error."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._tail = b""
        self._lock = Lock()
        Thread(target=self._follow, daemon=True).start()

    def give_away(self) -> None:
        """The worker has the writing end now: with its last process the log ends."""
        os.close(self.writer)

    def clear(self) -> None:
        """What comes from here on is another job's."""
        self.text()
        self._tail = b""

    def text(self) -> str:
        """The last of what was printed."""
        with self._lock:
            self._read()
            return self._tail.decode(errors="replace")

    def _follow(self) -> None:
        ended = False
        while not ended:
            select([self._reader], [], [])
            with self._lock:
                ended = self._read()
                if ended:
                    os.close(self._reader)
                    self._reader = -1

    def _read(self) -> bool:
        """What there is; whether nothing more can come."""
        with suppress(BlockingIOError, OSError):
            for _ in range(CHUNKS):
                content = os.read(self._reader, CHUNK)
                if not content:
                    return True
                self._tail = (self._tail + content)[-MOST_BYTES:]
        return False
