"""The browser that the tests of pages use."""

import asyncio
import os
import sys

import pytest

from tests.kit.browser import WAIT, browsing, found
from tests.kit.processes import below
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")
@pytest.mark.parametrize("fails", [False, True], ids=["a test passes", "a test fails"])
async def test_a_browser_and_all_its_processes_end(fails):
    before = {*below(os.getpid())}

    async def browse():
        async with browsing() as browser:
            await browser.new_page()
            assert {*below(os.getpid())} > before
            if fails:
                raise ValueError("by the test")

    if fails:
        with pytest.raises(ValueError, match="by the test"):
            await browse()
    else:
        await browse()
    await asyncio.wait_for(until(lambda: not {*below(os.getpid())} - before), WAIT)


@pytest.mark.parametrize("name", ["/nowhere/chromium", "no-such-browser"])
def test_a_browser_that_is_named_and_is_not_there_is_no_browser(monkeypatch, name):
    monkeypatch.setenv("PARLEY_CHROMIUM", name)
    assert found() is None
