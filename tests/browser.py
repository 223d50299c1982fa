"""A headless Chromium for the tests of a file: pages opened, keys pressed, and what it complains of.

It is spoken to over a pipe (chromedevtools.github.io/devtools-protocol), which needs no further package.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium here")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
LONGEST_S = 120
KEYS = {"Tab": 9, "Enter": 13, " ": 32}
TEXTS = {"Enter": "\r", " ": " "}


class Browser:
    """A process of Chromium, which reads messages from descriptor 3 and writes to 4, a zero after each."""

    def __init__(self, folder: str) -> None:
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        assert CHROMIUM
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        moved = f'exec "$@" 3<&{read} 4>&{write}'  # descriptors ascend: `write` is neither 3 nor 4
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *command],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._sent, self._rest = 0, b""
        self.told: list[dict[str, Any]] = []  # events, not yet looked at

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """The answer to a message."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            self.told.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str) -> None:
        """Until an event of that name has come."""
        while not any(each.get("method") == method for each in self.told):
            self.told.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + LONGEST_S
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], end - time.monotonic())[0], "Chromium does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "Chromium has ended"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self.call("Browser.close")
        self._process.wait(LONGEST_S)
        os.close(self._out)
        os.close(self._in)


class Tab:
    """A tab of its own. `complaints`: errors, lines of the console, dialogs; `requests`: what was loaded."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        browser.told.clear()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def window(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """The size in pixels, and whether the system is `light` or `dark`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Until the page, and what it loads, is there."""
        for each in ("about:blank", url):  # else nothing is loaded where only what is behind # differs
            self._browser.told.clear()
            self.call("Page.navigate", url=each)
            self._browser.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, as JSON."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", text=TEXTS.get(key, ""), **code)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    @property
    def requests(self) -> list[str]:
        return [each["params"]["request"]["url"] for each in self._events("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        names = (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )
        return self._events(*names)

    def _events(self, *names: str) -> list[dict[str, Any]]:
        self.value("0")  # what came before it has been read then
        return [each for each in self._browser.told if each.get("method") in names]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Of an empty profile."""
    folder = tempfile.mkdtemp(prefix="accelbench-chromium-")
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.end()
        shutil.rmtree(folder, ignore_errors=True)
