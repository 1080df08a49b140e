"""A headless Chromium, driven by its DevTools protocol through a pipe, which needs no package beside the browser's own."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 60.0
_HIGH = 10  # Above the descriptors that the browser reads and writes: 3 and 4.

Message = dict[str, Any]


def found() -> str | None:
    """The browser's path; None: there is none here."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Visit:
    """What one opening of a page showed."""

    first_paint_s: float  # From the beginning of the navigation to the first paint with content in it.
    requests: list[str] = field(default_factory=list)  # Beside the page itself.
    messages: list[str] = field(default_factory=list)  # Errors and warnings of console, security policy and page.
    content_width: float = 0.0  # CSS pixels; more than the window's: it scrolls sideways.
    screenshot: bytes = b""  # PNG of the whole page.


class Browser:
    def __init__(self, path: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="report-page-")
        to_read, self._to = self._pipe()
        self._from, to_write = self._pipe()
        words = [path, "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                 "--disable-background-networking", f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *words],
                                         pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._number, self._buffer, self._waiting = 0, b"", list[Message]()

    @staticmethod
    def _pipe() -> tuple[int, int]:
        ends = os.pipe()
        high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH) for end in ends)
        for end in ends:
            os.close(end)
        return high[0], high[1]

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError, RuntimeError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._to, self._from):
            os.close(end)
        with suppress(OSError):  # Its last processes may still write there.
            self._profile.cleanup()

    def call(self, method: str, parameters: Message | None = None, session: str | None = None) -> Message:
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._to, content):]
        answer = self.next(lambda one: one.get("id") == message["id"])
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error'].get('message')}")
        return answer["result"]

    def next(self, wanted: Callable[[Message], bool]) -> Message:
        """The next message that is wanted; others wait for those who want them."""
        for place, message in enumerate(self._waiting):
            if wanted(message):
                return self._waiting.pop(place)
        end = time.monotonic() + LIMIT_S
        while True:
            message = self._read(end)
            if wanted(message):
                return message
            self._waiting.append(message)

    def taken(self, session: str) -> list[Message]:
        """All that has come from this session and nobody has taken."""
        mine = [message for message in self._waiting if message.get("sessionId") == session]
        self._waiting = [message for message in self._waiting if message.get("sessionId") != session]
        return mine

    def _read(self, end: float) -> Message:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise RuntimeError(f"the browser did not answer within {LIMIT_S:g} s")
            content = os.read(self._from, 1 << 20)
            if not content:
                raise RuntimeError("the browser has ended")
            self._buffer += content
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def visit(self, page: Path, width: int, height: int, dark: bool, scripts: bool = True) -> Visit:
        """Opens the page in a tab of its own."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        try:
            return self._visit(session, page, width, height, dark, scripts)
        finally:
            self.taken(session)
            self.call("Target.closeTarget", {"targetId": target})

    def _visit(self, session: str, page: Path, width: int, height: int, dark: bool, scripts: bool) -> Visit:
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable", session=session)
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
                  session)
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
                  session)
        self.call("Emulation.setScriptExecutionDisabled", {"value": not scripts}, session)
        self.call("Page.setLifecycleEventsEnabled", {"enabled": True}, session)
        self.taken(session)  # Of the empty page before.
        loader = self.call("Page.navigate", {"url": page.resolve().as_uri()}, session)["loaderId"]

        def moment(name: str) -> float:
            event = self.next(lambda one: one.get("method") == "Page.lifecycleEvent" and one["params"]["name"] == name
                              and one["params"]["loaderId"] == loader and one.get("sessionId") == session)
            return event["params"]["timestamp"]

        begin = moment("init")
        shown = Visit(first_paint_s=moment("firstContentfulPaint") - begin)
        moment("networkIdle")
        shown.content_width = self.call("Page.getLayoutMetrics", session=session)["cssContentSize"]["width"]
        screenshot = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}, session)["data"]
        shown.screenshot = base64.b64decode(screenshot)
        for message in self.taken(session):
            self._note(shown, message)
        return shown

    @staticmethod
    def _note(shown: Visit, message: Message) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent" and parameters.get("type") != "Document":
            shown.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            shown.messages.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            shown.messages.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            shown.messages.append(parameters["exceptionDetails"]["text"])
