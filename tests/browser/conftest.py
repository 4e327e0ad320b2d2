"""One browser for the tests of a module: each opens pages of its own, with nothing remembered."""

import pytest

from tests.kit.browser import browsing, found


@pytest.fixture(scope="module")
async def browser():
    executable = found()
    if executable is None:
        pytest.skip("there is no Chromium here: install one, or name it in PARLEY_CHROMIUM")
    async with browsing(executable) as running:
        yield running
