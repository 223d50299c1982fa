"""A headless Chromium that opens pages, presses keys and collects errors.

It is controlled over a pipe (chromedevtools.github.io/devtools-protocol), which needs no further package.
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
    """A Chromium process. Its messages end with a zero byte; it reads from descriptor 3 and writes to 4."""

    def __init__(self, folder: str) -> None:
        reader, self._out = os.pipe()
        self._in, writer = os.pipe()
        assert CHROMIUM
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        script = f'exec "$@" 3<&{reader} 4>&{writer}'  # descriptors ascend: `writer` is neither 3 nor 4
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(reader, writer),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reader)
        os.close(writer)
        self._last_id, self._buffer = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last_id:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + LONGEST_S
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], end - time.monotonic())[0], "Chromium does not answer"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "Chromium has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self) -> None:
        self.call("Browser.close")
        self._process.wait(LONGEST_S)
        os.close(self._out)
        os.close(self._in)


class Tab:
    """A browser tab. `complaints`: errors, console lines and dialogs; `requests`: the loaded addresses."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        browser.events.clear()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def window(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Set the size in pixels and the colour scheme, `light` or `dark`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        for address in ("about:blank", url):  # a URL that differs only after # would not be loaded
            self._browser.events.clear()
            self.call("Page.navigate", url=address)
            self._browser.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", text=TEXTS.get(key, ""), **code)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    @property
    def requests(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

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
        self.value("0")  # reads all earlier events
        return [event for event in self._browser.events if event.get("method") in names]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def a_browser() -> Iterator[Browser]:
    folder = tempfile.mkdtemp(prefix="accelbench-chromium-")
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.end()
        shutil.rmtree(folder, ignore_errors=True)
