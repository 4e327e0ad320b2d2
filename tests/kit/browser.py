"""A browser without a screen, driven over the DevTools protocol: real keys, real clicks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from tests.kit.waiting import let_time_pass

WAIT = 10.0

_NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
_PLACES = {
    "darwin": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
    ),
    "win32": (
        r"C:\Program Files\Google\Chrome\Application\chrome.exe",
        r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
    ),
}


def found() -> str | None:
    """Return the path of a browser that there is: ``PARLEY_CHROMIUM``, else one that is known."""
    given = os.environ.get("PARLEY_CHROMIUM")
    if given:
        return shutil.which(given)
    by_name = (shutil.which(name) for name in _NAMES)
    in_place = (place for place in _PLACES.get(sys.platform, ()) if Path(place).exists())
    return next(filter(None, (*by_name, *in_place)), None)


class Refused(Exception):
    """The browser could not do it, or what a page ran raised."""


class Browser:
    """One browser, and the pages in it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Hand out what the browser says, until it is closed."""
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(told)
            elif (page := self._pages.get(told.get("sessionId", ""))) is not None:
                page.hear(told["method"], told["params"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Refused("the browser has gone"))

    async def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Have the browser, or one page of it, do something."""
        id = next(self._ids)
        asked = {"id": id, "method": method, "params": params}
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({**asked, "sessionId": session} if session else asked)
        told = await asyncio.wait_for(answer, WAIT)
        if "error" in told:
            raise Refused(f"{method}: {told['error']['message']}")
        return told["result"]

    @asynccontextmanager
    async def page(self, url: str, *, width: int = 1280, dark: bool = False) -> AsyncIterator[Page]:
        """Open a page with nothing remembered, and close it in the end."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        made = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        session = attached["sessionId"]
        page = self._pages[session] = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            await page.look(width=width, dark=dark)
            await page.open(url)
            yield page
        finally:
            del self._pages[session]
            await self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One page. ``complaints`` are errors of its scripts, of its policy and on its console."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.requests: list[dict[str, Any]] = []

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Keep what the page complains of, and what it asks for."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            entry = params["entry"]
            # A refusal that a request is answered with is told as an error of the network.
            if entry["level"] in ("error", "warning") and entry["source"] != "network":
                self.complaints.append(entry["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Have the page do something."""
        return await self._browser.call(method, self._session, **params)

    async def open(self, url: str) -> None:
        """Go to an address, or to the same once more."""
        told = await self.call("Page.navigate", url=url)
        if "errorText" in told:
            raise Refused(f"{url}: {told['errorText']}")
        async with asyncio.timeout(WAIT):
            while not await self._is_there(url):
                await let_time_pass(0.02)

    async def _is_there(self, url: str) -> bool:
        try:
            return bool(
                await self.run(
                    f"location.href === {json.dumps(url)} && document.readyState === 'complete'"
                )
            )
        except Refused:  # what was there before is being left
            return False

    async def look(self, *, width: int, dark: bool = False, height: int = 900) -> None:
        """Be as wide as that, and as dark as its reader likes it."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[theme])

    async def run(self, script: str) -> Any:
        """Return what an expression is on the page, a promise's value when it is kept."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise Refused(told["exceptionDetails"].get("exception", {}).get("description", script))
        return told["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait until an expression is something, look again at every frame; that."""
        return await asyncio.wait_for(
            self.run(
                f"""new Promise((done, fail) => {{
                  const look = () => {{
                    try {{
                      const value = {condition};
                      if (value) done(value); else requestAnimationFrame(look);
                    }} catch (error) {{ fail(error); }}
                  }};
                  look();
                }})"""
            ),
            WAIT,
        )

    async def click(self, selector: str) -> None:
        """Click in the middle of what a selector finds, once it is there to be seen."""
        chosen = json.dumps(selector)
        await self.until(f"document.querySelector({chosen})?.checkVisibility()")
        x, y = await self.run(
            f"""(() => {{
              const node = document.querySelector({chosen});
              node.scrollIntoView({{block: "center", behavior: "instant"}});
              const box = node.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def write(self, selector: str, text: str) -> None:
        """Put text into a field, instead of what is in it."""
        await self.click(selector)
        await self.run(f"document.querySelector({json.dumps(selector)}).select()")
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, ctrl: bool = False) -> None:
        """Press a key, and let it go."""
        code = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        pressed = {"key": key, "code": "Space" if key == " " else key, "modifiers": 2 * ctrl}
        pressed["windowsVirtualKeyCode"] = code
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)


@asynccontextmanager
async def browsing(executable: str) -> AsyncIterator[Browser]:
    """Run a browser for as long as the context lasts."""
    with TemporaryDirectory(prefix="parley-browser-", ignore_cleanup_errors=True) as profile:
        command = [executable, "--headless", "--disable-gpu", "--no-first-run", "--mute-audio"]
        command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        command += ["--disable-dev-shm-usage", "--disable-background-networking"]
        if hasattr(os, "getuid") and os.getuid() == 0:
            command.append("--no-sandbox")  # what root has to do, and nobody else
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            address = await asyncio.wait_for(_address(Path(profile), process), 3 * WAIT)
            async with (
                asyncio.TaskGroup() as tasks,
                aiohttp.ClientSession() as http,
                http.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = Browser(socket)
                listening = tasks.create_task(browser.listen())
                yield browser
                with suppress(Refused, TimeoutError, ConnectionError):
                    await browser.call("Browser.close")
                listening.cancel()
        finally:
            _end(process)
            await process.wait()


def _end(process: asyncio.subprocess.Process) -> None:
    """End a browser and all that belongs to it.

    What was started may be a script that waits for the browser: the script's end is not the
    browser's. They are a group of their own, where there are such.
    """
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


async def _address(profile: Path, process: asyncio.subprocess.Process) -> str:
    """Wait until the browser has written where it listens: its port, and a path."""
    told = profile / "DevToolsActivePort"
    while not told.exists() or told.read_text().count("\n") < 1:
        if process.returncode is not None:
            raise Refused(f"the browser ended with {process.returncode} before it could be driven")
        await let_time_pass(0.02)
    port, path = told.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"
