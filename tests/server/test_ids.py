"""Tenants and callers that no store could keep."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from parley.model.errors import InvalidParamsError, UnauthenticatedError
from parley.model.ids import LONGEST_ID
from parley.model.operations import GetTaskRequest
from parley.model.service import Caller
from parley.server.run import serving
from tests.kit.grpc import rpc_to
from tests.kit.http import ask, call, post
from tests.kit.scripted import Scripted, app_of

pytestmark = pytest.mark.anyio

WRONG = ["t" * (LONGEST_ID + 1), "é" * LONGEST_ID, "a\0b"]
LONGEST = "t" * LONGEST_ID


async def test_a_tenant_that_cannot_be_kept_is_refused() -> None:
    service = Scripted()
    app = app_of(service)
    async with serving(app) as url:
        for wrong in WRONG:
            refused = await post(url, call("GetTask", {"id": "t-1", "tenant": wrong}))
            assert refused.error["code"] == -32602
            assert refused.error["message"].startswith("tenant: ")
            refused = await ask(
                url, "GET", f"/{quote(wrong)}/tasks/t-1", b"", {"A2A-Version": "1.0"}
            )
            assert refused.status == 400
            assert b"tenant: " in refused.body
        assert service.asked == []
        assert "result" in (await post(url, call("GetTask", {"id": "t", "tenant": LONGEST}))).json
    async with rpc_to(app) as rpc:
        for wrong in WRONG:
            refusal = await rpc.refused("GetTask", GetTaskRequest(id="t-1", tenant=wrong))
            assert refusal.status == "INVALID_ARGUMENT"
            assert type(refusal.error) is InvalidParamsError
            assert refusal.words.startswith("tenant: ")


@pytest.mark.parametrize(
    "caller",
    [
        *[Caller(id=name, authenticated=True) for name in [*WRONG, "a\x1fb", "a\nb", "a\x7f"]],
        *[Caller("bob", True, issuer=issuer) for issuer in [*WRONG, "a\x1fb", "a\x01"]],
        Caller(id="a\x1fbob"),
    ],
    ids=lambda caller: repr((caller.issuer or caller.id)[:9]),
)
async def test_a_caller_who_cannot_be_told_from_others_is_not_let_in(caller: Caller) -> None:
    service = Scripted()
    app = app_of(service, identify=lambda scope: caller)
    async with serving(app) as url:
        refused = await post(url, call("GetTask"))
        assert (refused.status, refused.error["code"]) == (401, -32010)
        assert str(LONGEST_ID) in refused.error["message"]
    async with rpc_to(app) as rpc:
        refusal = await rpc.refused("GetTask", GetTaskRequest(id="t-1"))
        assert type(refusal.error) is UnauthenticatedError
    assert service.asked == []


async def test_an_issuer_vouches_for_an_id() -> None:
    service = Scripted()
    app = app_of(service, identify=lambda scope: Caller(issuer="https://login.example"))
    async with serving(app) as url:
        refused = await post(url, call("GetTask"))
        assert (refused.status, refused.error["code"]) == (401, -32010)
        assert "an issuer and no id" in refused.error["message"]
    assert service.asked == []
