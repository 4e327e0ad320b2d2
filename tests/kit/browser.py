"""A real browser without a screen, by Playwright: real keys, real clicks.

``browsing()`` runs the Chromium, Chrome or Edge of this machine, and skips the test without one.
``opened(browser, url)`` is a page without stored data. It fails the test when the page reports an
error of its scripts, of its policy, or on its console.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

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
    """Return the path of a browser: ``PARLEY_CHROMIUM``, else an installed one."""
    given = os.environ.get("PARLEY_CHROMIUM")
    if given:
        return shutil.which(given)
    by_name = (shutil.which(name) for name in _NAMES)
    in_place = (place for place in _PLACES.get(sys.platform, ()) if Path(place).exists())
    return next(filter(None, (*by_name, *in_place)), None)


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Run a browser within the context."""
    executable = found()
    if executable is None:
        pytest.skip("there is no Chromium here: install one, or name it in PARLEY_CHROMIUM")
    is_root = hasattr(os, "getuid") and os.getuid() == 0
    async with (
        async_playwright() as playwright,
        await playwright.chromium.launch(
            executable_path=executable, chromium_sandbox=not is_root, timeout=3000 * WAIT
        ) as browser,
    ):
        yield browser


@asynccontextmanager
async def opened(
    browser: Browser, url: str, *, width: int = 1280, dark: bool = False, **options: Any
) -> AsyncIterator[Page]:
    """Open a page in a window of this width, in dark or light mode.

    ``options`` are further options of the browser's context.
    """
    theme: Any = "dark" if dark else "light"
    window: Any = {"width": width, "height": 844}
    made = browser.new_context(viewport=window, color_scheme=theme, **options)
    async with await made as context:
        context.set_default_timeout(1000 * WAIT)
        page = await context.new_page()
        await page.goto(url)
        yield page
        said = [each for each in await page.console_messages() if each.type in ("error", "warning")]
        # The browser itself logs rejected and failed requests.
        said = [each for each in said if not each.text.startswith("Failed to load resource")]
        assert [each.text for each in said] == []
        assert await page.page_errors() == []
