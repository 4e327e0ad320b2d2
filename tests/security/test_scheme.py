"""What all security schemes have in common."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from parley.model.errors import UnauthenticatedError
from parley.model.service import ANONYMOUS, Caller
from parley.security import ApiKey, Basic, Bearer, Jwt, MutualTls, anonymous
from parley.security.api_keys import digest_of
from parley.security.authentication import Authenticator
from parley.security.authorization import Authorization
from parley.security.schemes.scheme import Scheme

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 513, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: ApiKey(name=name),
        lambda name: Basic({}, name=name),
        lambda name: Bearer(lambda token: None, name=name),
        lambda name: MutualTls(name=name),
        lambda name: Jwt(issuer="bank", audience="bank", keys=b"k" * 32, name=name),
    ],
)
def test_a_scheme_has_a_name_that_can_be_part_of_an_identity(
    make: Callable[[Any], object], name: Any
) -> None:
    with pytest.raises(ValueError, match="the name of a security scheme"):
        make(name)


def user_of(password: str) -> Basic:
    return Basic(lambda user, given: Caller(id=user) if given == password else None, name=password)


def key_of(key: str) -> ApiKey:
    return ApiKey(keys={digest_of(key): Caller(id="ada")}, name=key)


def request(name: bytes, value: bytes) -> dict[str, Any]:
    return {"type": "grpc", "headers": [(name, value)], "query_string": b"", "client": None}


async def identified(authenticator: Authenticator, asked: dict[str, Any]) -> Caller:
    found = authenticator(asked)
    return found if isinstance(found, Caller) else await found


def basic(password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(b"ada:" + password)


@pytest.mark.parametrize(
    ("first", "second", "name", "value", "wrong"),
    [
        (user_of("a"), user_of("b"), b"authorization", basic(b"b"), basic(b"c")),
        (key_of("a"), key_of("b"), b"x-api-key", b"b", b"c"),
    ],
    ids=["basic", "key"],
)
async def test_one_of_the_schemes_that_read_a_credential_has_to_accept_it(
    first: Scheme, second: Scheme, name: bytes, value: bytes, wrong: bytes
) -> None:
    """Over gRPC the schemes of all agents are verified: which agent is meant is known later."""
    authenticator = Authenticator([first.security, second.security])
    caller = await identified(authenticator, request(name, value))
    assert (caller.id, caller.issuer, set(caller.granted)) == ("ada", "b", {second})
    with pytest.raises(UnauthenticatedError):
        await identified(authenticator, request(name, wrong))
    assert authenticator.failures.refused == 1


async def test_an_agent_knows_a_caller_by_its_own_schemes_alone() -> None:
    own = Bearer(lambda token: Caller(id="ada") if token == "both" else None)
    other = Bearer(lambda token: Caller(id="root", scopes=frozenset({"all"})))
    rules = Authorization(own | anonymous)
    authenticator = Authenticator([other.security, own.security])
    caller = await authenticator(request(b"authorization", b"Bearer both"))  # type: ignore[misc]
    assert (caller.id, caller.scopes) == ("root", {"all"})
    assert (rules.own_caller(caller).id, rules.own_caller(caller).scopes) == ("ada", frozenset())
    caller = await authenticator(request(b"authorization", b"Bearer other"))  # type: ignore[misc]
    assert rules.own_caller(caller) is ANONYMOUS
