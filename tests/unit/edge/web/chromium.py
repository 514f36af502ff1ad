"""A headless Chromium, controlled over two pipes with the DevTools protocol, without a driver or a port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One page of a browser with its own profile.

    Args:
        profile: An empty directory.
        width: Width of the window in pixels.
        height: Its height.
    """

    def __init__(self, profile: Path, width: int = 1300, height: int = 900) -> None:
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        options += [
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
        ]
        options += [
            "--hide-scrollbars",
            "--disable-extensions",
            "--disable-background-networking",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", BROWSER or "", *options],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        pages = self.send("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = ""
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", ""):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self.events.append(reply)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def run(self, script: str) -> Any:
        """Evaluate JavaScript and return the value; awaits a promise."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def until(self, condition: str, within_s: float = 20) -> None:
        """Wait until a condition in JavaScript holds."""
        deadline = time.monotonic() + within_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, (
                f"{condition}; the page: {self.run('document.body.innerText')}"
            )
            time.sleep(0.05)

    def press(self, key: str, code: str | None = None, text: str = "", number: int = 0) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            pressed = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                **pressed,
                **({"text": text} if kind == "keyDown" and text else {}),
            )

    def picture(self, file: Path) -> None:
        """Take a screenshot of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "scale": 1}
        taken = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(taken["data"]))

    def requested(self) -> list[str]:
        """Return the requested addresses."""
        self.run("0")
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Return the log of the page: errors of scripts, and violations of the content security policy."""
        self.run("0")
        logged = [e["params"]["entry"]["text"] for e in self.events if e.get("method") == "Log.entryAdded"]
        thrown = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        return [*logged, *map(str, thrown)]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._to)
        os.close(self._from)
