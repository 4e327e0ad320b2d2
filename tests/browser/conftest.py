"""One browser for the tests of a module; each test opens fresh pages without stored state."""

import pytest

from tests.kit.browser import browsing


@pytest.fixture(scope="module")
async def browser():
    async with browsing() as running:
        yield running
