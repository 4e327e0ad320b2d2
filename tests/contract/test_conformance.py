"""The requirements of ``parley conformance server``, over every store and in every way.

Each HTTP request goes to a random replica of the store.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

import parley
from parley.conformance.server_run import CHECKS, run_server
from tests.contract.conftest import Serve
from tests.kit.servers import BINDINGS, VERSIONS
from tests.kit.services.front_door import front_door
from tests.testing.conformance.tried import AGENTS, CARD_OF, TEXTS

pytestmark = pytest.mark.anyio

WAYS = {f"{binding} {version}" for binding in BINDINGS for version in VERSIONS}
TRIED = {
    (check.requirement.id, where)
    for check in CHECKS
    for where in (WAYS if check.scope == "interface" else {"card"})
    if where == "card"
    or (where.split()[0] in check.bindings and where.split()[1] in check.versions)
}

ONE_CARD = ("CARD-7", "CARD-12")
"""Requirements that compare two readings of the card. Here each replica's card names its own gRPC
port."""


@pytest.mark.slow
async def test_every_requirement_is_met_over_every_store_in_every_way(serve: Serve) -> None:
    """Together, three agents cover all requirements."""
    passed: set[tuple[str, str]] = set()
    for of, agents in AGENTS.items():
        replicas = await serve(partial(parley.asgi, **agents), caller=None)
        skipped = ONE_CARD if len(replicas) > 1 else ()
        async with front_door(replicas, random.Random(1)) as door:
            url = door.url + CARD_OF[of]
            report = await run_server(url, texts=TEXTS, skip=skipped)
            async with parley.connect(url, extensions=["urn:example:strict:v1"]) as remote:
                left = [task async for task in remote.tasks() if not task.state.is_terminal]
        assert left == []  # the checks leave no open task
        others = [v for v in report.verdicts if v.outcome in ("failed", "noted")]
        assert [f"{v.where} {v.requirement.id}: {v.reason}" for v in others] == []
        assert report.conforms
        passed |= {(v.requirement.id, v.where) for v in report.verdicts if v.outcome == "passed"}
    assert {(id, where) for id, where in TRIED - passed if id not in skipped} == set()
