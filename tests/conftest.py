"""What every test shares."""

import pytest
from hypothesis import settings

# A slow moment of the machine is no failure.
settings.register_profile("parley", deadline=None)
settings.load_profile("parley")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
