"""What every test shares."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# A slow moment of the machine is no failure.
settings.register_profile("parley", deadline=None)
settings.load_profile("parley")

NOTHING_IS_SKIPPED = bool(os.environ.get("CI") or os.environ.get("PARLEY_NO_SKIP"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what would be skipped because another implementation is missing, where none may be."""
    report = yield
    if report.skipped and item.get_closest_marker("peer") and NOTHING_IS_SKIPPED:
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be: {report.longrepr}"
    return report
