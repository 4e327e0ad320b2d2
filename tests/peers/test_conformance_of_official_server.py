"""What a conformance run says of the official SDK's server (docs/conformance-runs.md)."""

from __future__ import annotations

import pytest

from parley.conformance.probe import ProbedTexts
from parley.conformance.server_run import run_server

pytestmark = pytest.mark.anyio
TEXTS = ProbedTexts(text="hello", task="report 3 0", ask="book", slow="slow")


async def test_the_official_server_is_judged_as_the_page_says(official_server: str) -> None:
    report = await run_server(official_server, texts=TEXTS, patience=10)
    found = {f"{each.where} {each.requirement.id}" for each in report.failed}
    assert found == {
        "card CARD-6",
        "JSONRPC 0.3 MSG-10",
        "JSONRPC 0.3 MSG-11",
        "JSONRPC 0.3 RPC-4",
        "HTTP+JSON 0.3 STREAM-10",
        "HTTP+JSON 0.3 PUSH-3",
    }
    assert len({each.where for each in report.verdicts}) == 7
