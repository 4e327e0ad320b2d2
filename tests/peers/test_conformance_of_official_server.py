"""A conformance run on the official SDK's server (docs/guides/conformance-runs.md)."""

from __future__ import annotations

import pytest

from parley.conformance.probe import ProbedTexts
from parley.conformance.server_run import run_server

pytestmark = pytest.mark.anyio
TEXTS = ProbedTexts(text="hello", task="report 3 0", ask="book", slow="slow")


async def test_the_official_server_is_judged_as_the_page_says(official_server: str) -> None:
    report = await run_server(official_server, texts=TEXTS, patience=10)
    found: dict[str, set[str]] = {}
    for each in report.failed:
        found.setdefault(each.where, set()).add(each.requirement.id)
    parts, notices = {"MSG-20", "MSG-22", "MSG-24"}, {"RPC-9", "RPC-11"}
    assert found == {
        "card": {"CARD-6"},
        "GRPC 1.0": {"VER-1", "VER-2"},
        "JSONRPC 1.0": parts | notices,
        "HTTP+JSON 1.0": parts,
        "JSONRPC 0.3": {"MSG-10", "MSG-11", "MSG-24", "MSG-25", "RPC-4"} | notices,
        "HTTP+JSON 0.3": {"MSG-25", "STREAM-10", "STREAM-14", "PUSH-3"},
    }
    assert len({each.where for each in report.verdicts}) == 7
