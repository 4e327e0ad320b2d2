"""Metrics and spans belong to the process, so each test begins without."""

import pytest

from parley.observe import metrics, tracing


@pytest.fixture(autouse=True)
def unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "current", None)
    monkeypatch.setattr(tracing, "tracer", None)
    return
