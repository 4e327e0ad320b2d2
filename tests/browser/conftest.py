"""One browser for the tests of a module: each opens pages of its own, with nothing remembered."""

import pytest

from tests.kit.browser import browsing


@pytest.fixture(scope="module")
async def browser():
    async with browsing() as running:
        yield running
