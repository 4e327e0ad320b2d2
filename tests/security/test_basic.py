"""HTTP Basic: users with password hashes, or a verification function."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import unicodedata
from typing import Any

import pytest

from parley.model.errors import OverloadedError
from parley.model.service import Caller
from parley.security import Basic
from parley.security.credentials import MAX_WAITING, PasswordHash, _scrypt
from parley.security.evidence import Evidence, SchemeResources
from parley.security.schemes.http import MAX_CHECKS
from parley.security.schemes.scheme import CredentialsRefused, Proof
from tests.kit.waiting import Clock, until

pytestmark = pytest.mark.anyio

# A fast hash: the cost of scrypt is not under test.
FAST = PasswordHash(2, 1, 1, b"saltsalt", b"")


def fast_hash(password: str) -> str:
    return str(FAST._replace(digest=_scrypt(password, FAST, 32)))


def evidence(*values: str, clock: Clock | None = None) -> Evidence:
    headers = [(b"authorization", value.encode("latin-1")) for value in values]
    scope = {"client": ("1.2.3.4", 5), "headers": headers, "query_string": b""}
    return Evidence(scope, SchemeResources(now=clock or Clock(1000.0)))


def basic(user: str, password: str, *, clock: Clock | None = None) -> Evidence:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return evidence(f"Basic {text}", clock=clock)


async def proved(scheme: Basic, shown: Evidence) -> Proof:
    proof = scheme.verify(shown)
    return proof if isinstance(proof, Proof) else await proof


async def refusal(scheme: Basic, shown: Evidence) -> CredentialsRefused:
    with pytest.raises(CredentialsRefused) as caught:
        await proved(scheme, shown)
    return caught.value


@pytest.fixture
def users() -> Basic:
    return Basic({"ada": fast_hash("pass:word"), "bob": fast_hash("other")})


async def test_wrong_passwords_and_unknown_users_look_alike(users: Basic) -> None:
    wrong = await refusal(users, basic("ada", "s3cret"))
    unknown = await refusal(users, basic("hunter2", "s3cret"))
    assert wrong.description == unknown.description
    assert wrong.reason == "a wrong password for the user 'ada'"
    # An unknown user name may be a password in the wrong field.
    assert unknown.reason == "no such user"
    for other in (basic("ada", "other"), basic("ADA", "pass:word"), basic("ada", "")):
        await refusal(users, other)


@pytest.mark.slow
async def test_an_unknown_user_costs_as_much_as_a_known_one(
    users: Basic, monkeypatch: pytest.MonkeyPatch
) -> None:
    matched: list[bool] = []
    matches = PasswordHash.matches

    def counted(self: PasswordHash, password: str) -> bool:
        matched.append(True)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", counted)
    await refusal(users, basic("nobody", "x"))
    await refusal(users, basic("ada", "x"))
    assert len(matched) == 2
    await refusal(Basic({}), basic("nobody", "x"))
    assert len(matched) == 3


@pytest.mark.parametrize("form", ["NFC", "NFD"])
async def test_texts_beyond_ascii_are_utf_8_in_whatever_composition(form: Any) -> None:
    word = unicodedata.normalize("NFC", "pässwörd")
    scheme = Basic({"zoë": fast_hash(word)})
    shown = basic(unicodedata.normalize(form, "zoë"), unicodedata.normalize(form, word))
    assert (await proved(scheme, shown)).caller.id == "zoë"
    assert scheme.challenge() == 'Basic realm="parley", charset="UTF-8"'


@pytest.mark.parametrize(
    "values",
    [
        ("Basic",),
        ("Basic ",),
        ("Basic !!!!",),
        ("Basic YWRh",),  # no colon
        ("Basic OnBhc3M6d29yZA==",),  # no user
        ("Basic " + base64.b64encode(b"ada:\xff").decode(),),
        ("Basic " + base64.b64encode(b"a\nb:x").decode(),),
        ("Basic " + "A" * 5000,),
        ("Basic YWRhOng=", "Basic YWRhOng="),
        ("Basic YWRhOng=", "Bearer x"),
    ],
)
async def test_what_is_malformed_is_refused(users: Basic, values: tuple[str, ...]) -> None:
    shown = evidence(*values)
    assert users.is_presented(shown)
    assert users.claimed(shown) in ("", "ada")
    await refusal(users, shown)


async def test_a_user_or_a_password_that_cannot_be_is_not_looked_up(users: Basic) -> None:
    for user, password in (("", "x"), ("a\nb", "x"), ("ada", "x" * 1025)):
        refused = await refusal(users, basic(user, password))
        assert refused.reason == "malformed Basic credentials"
    assert users.claimed(evidence("Bearer YWRhOng=")) == ""
    assert [await users.knows(id, SchemeResources()) for id in ("ada", "eve")] == [True, False]


async def test_few_passwords_are_verified_at_once_and_a_bounded_number_waits() -> None:
    running = most = 0
    go_on = asyncio.Event()

    async def judge(user: str, password: str) -> Caller | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        return Caller(id=user)

    scheme = Basic(judge)
    calls = [
        asyncio.ensure_future(proved(scheme, basic(f"user{n}", "x")))
        for n in range(MAX_CHECKS + MAX_WAITING + 5)
    ]
    await until(lambda: running == MAX_CHECKS)
    go_on.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert most == MAX_CHECKS
    assert sum(isinstance(each, OverloadedError) for each in found) == 5
    assert sum(isinstance(each, Proof) for each in found) == MAX_CHECKS + MAX_WAITING


# -- hashes ---------------------------------------------------------------------------------------


def test_a_hash_of_a_higher_cost_is_verified() -> None:
    digest = hashlib.scrypt(b"word", salt=b"saltsalt", n=2**15, r=8, p=1, maxmem=2**27, dklen=32)
    assert PasswordHash(2**15, 8, 1, b"saltsalt", digest).matches("word")


@pytest.mark.parametrize("password", ["", "x" * 1025])
def test_what_is_no_password_is_not_hashed(password: str) -> None:
    with pytest.raises(ValueError, match="1 to 1024 characters"):
        Basic.hash(password)


@pytest.mark.parametrize(
    "text",
    [
        "plain-s3cret",
        "$2b$12$abcdefghijklmnopqrstuv",
        "scrypt$16384$8$5$c2FsdHNhbHQ=",
        "scrypt$16383$8$5$c2FsdHNhbHQ=$" + "A" * 44,
        "scrypt$1073741824$8$5$c2FsdHNhbHQ=$" + "A" * 44,
        "scrypt$16384$8$5$c2E=$" + "A" * 44,
        "scrypt$16384$8$5$c2FsdHNhbHQ=$QQ==",
        None,
    ],
)
def test_what_is_no_hash_is_refused_and_not_shown(text: Any) -> None:
    with pytest.raises(ValueError, match="parley keys hash-password") as caught:
        Basic({"ada": text})
    assert "'ada'" in str(caught.value)
    assert str(text) not in str(caught.value)


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"a:b": "x"}, "without colons"),
        ({"": "x"}, "without colons"),
        ([("ada", "x")], "a mapping of users"),
    ],
)
def test_a_mistake_is_refused_with_what_would_be_right(users: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Basic(users)
