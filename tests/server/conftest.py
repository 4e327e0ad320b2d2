"""One server for the tests of a module; each test gives its agent a script."""

import pytest

from parley.server.run import serving
from tests.kit.scripted import Scripted, app_of


@pytest.fixture(scope="module")
async def server():
    service = Scripted()
    async with serving(app_of(service)) as address:
        yield service, address


@pytest.fixture
def service(server):
    server[0].forget()
    return server[0]


@pytest.fixture
def url(server, service):
    return server[1]
