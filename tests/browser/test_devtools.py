"""The browser that pages are tried in."""

import asyncio
import os
import sys

import pytest

from tests.kit.browser import WAIT, Refused, browsing, found
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_ended(pids):
    await until(lambda: not any(map(lives, pids)))


@pytest.mark.skipif(sys.platform == "win32", reason="asking whether a process lives ends it there")
@pytest.mark.parametrize("fails", [False, True], ids=["a test passes", "a test fails"])
async def test_a_browser_and_all_its_processes_end(fails):
    executable = found()
    if executable is None:
        pytest.skip("there is no Chromium here: install one, or name it in PARLEY_CHROMIUM")
    pids = []

    async def browse():
        async with browsing(executable) as browser:
            told = await browser.call("SystemInfo.getProcessInfo")
            pids.extend(each["id"] for each in told["processInfo"])
            if fails:
                raise Refused("by the test")

    if fails:
        with pytest.raises((Refused, ExceptionGroup)):
            await browse()
    else:
        await browse()
    assert pids
    await asyncio.wait_for(until_ended(pids), WAIT)


@pytest.mark.parametrize("name", ["/nowhere/chromium", "no-such-browser"])
def test_a_browser_that_is_named_and_is_not_there_is_no_browser(monkeypatch, name):
    monkeypatch.setenv("PARLEY_CHROMIUM", name)
    assert found() is None
