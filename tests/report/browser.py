"""A real headless Chromium, driven over its DevTools protocol on a pipe: no driver, no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """One page. Commands go out and answers come in as JSON ended by a NUL byte."""

    def __init__(self, out: BinaryIO, answers: BinaryIO) -> None:
        self._out, self._answers = out, answers
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.devtools("Target.createTarget", url="about:blank")["targetId"]
        attached = self.devtools("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.devtools(f"{domain}.enable")

    def devtools(self, method: str, **params: Any) -> dict[str, Any]:
        """Result of a DevTools command; events that come meanwhile are kept."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        self._out.write(json.dumps(command).encode() + b"\0")
        self._out.flush()
        while (message := self._next()).get("id") != self._number:
            self._events.append(message)
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message

    def open(self, url: str) -> None:
        """Load a page and wait until all of it is there."""
        self._events = [e for e in self._events if e["method"] != "Page.loadEventFired"]
        self.devtools("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.devtools("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, (script, found["exceptionDetails"])
        return found["result"].get("value")

    def look_like(self, width: int, height: int, scheme: str) -> None:
        """Take the size of a device (CSS pixels) and a colour scheme, "light" or "dark"."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def console(self) -> list[str]:
        """What the page said on its console, or failed with, since the last call."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        said = [json.dumps(e["params"]) for e in self._events if e["method"] in kinds]
        self._events = []
        return said

    def screenshot(self, path: Path) -> None:
        """A PNG of the whole page."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


def missing() -> str | None:
    """Why there is no browser here, None if there is one."""
    return None if shutil.which("chromium") else "chromium not found: apt-get install chromium"


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, ended afterwards. It reads file descriptor 3, writes 4."""
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    words = ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    line = f"exec {shlex.join(words)} 3<&{commands_in} 4>&{answers_out}"
    process = subprocess.Popen(
        ["bash", "-c", line],
        pass_fds=(commands_in, answers_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_in)
    os.close(answers_out)
    try:
        with os.fdopen(commands_out, "wb") as out, os.fdopen(answers_in, "rb") as answers:
            yield Browser(out, answers)
    finally:
        process.terminate()
        process.wait(timeout=20)
