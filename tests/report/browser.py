"""A real headless Chromium, driven over the WebDriver protocol of ChromeDriver."""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

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
]


class Browser:
    """One page; every method is one WebDriver command."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client, self._session = client, session

    def _send(self, verb: str, path: str, **body: Any) -> Any:
        answer = self._client.request(
            verb, f"/session/{self._session}{path}", json=body if verb == "POST" else None
        ).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path}: {answer['error']}: {answer['message']}")
        return answer

    def open(self, url: str) -> None:
        self._send("POST", "/url", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._send("POST", "/execute/sync", script=f"return {script}", args=[])

    def devtools(self, command: str, **params: Any) -> Any:
        return self._send("POST", "/goog/cdp/execute", cmd=command, params=params)

    def look_like(self, width: int, height: int, scheme: str) -> None:
        """Take the size of a device (CSS pixels) and a colour scheme, "light" or "dark"."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def console(self) -> list[str]:
        """Messages of the page's console since the last call, errors and warnings."""
        return [entry["message"] for entry in self._send("POST", "/se/log", type="browser")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))


def missing() -> str | None:
    """Why there is no browser here, None if there is one."""
    absent = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if not absent:
        return None
    return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver"


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile; closed, and its driver ended, afterwards."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert driver.stdout is not None
        port = next(
            found[1] for line in driver.stdout if (found := re.search(r"on port (\d+)\.", line))
        )
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
        ) as client:
            chrome = {
                "binary": shutil.which("chromium"),
                "args": [*FLAGS, f"--user-data-dir={profile}"],
            }
            wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
            body = {"capabilities": {"alwaysMatch": wanted}}
            made = client.post("/session", json=body).json()["value"]
            assert "sessionId" in made, made
            try:
                yield Browser(client, made["sessionId"])
            finally:
                client.delete(f"/session/{made['sessionId']}")
    finally:
        driver.terminate()
        driver.wait(timeout=20)
