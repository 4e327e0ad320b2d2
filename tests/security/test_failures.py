"""Failed authentications are counted, and throttled for addresses and ids."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from parley.model.errors import TooManyRequestsError, UnauthenticatedError
from parley.model.service import Caller
from parley.security import Bearer
from parley.security.authentication import Authenticator
from parley.security.evidence import SchemeResources
from parley.security.failures import LINES_PER_MINUTE, MAX_TRACKED, Failures
from parley.security.networks import CONNECTION, client_address, network_of
from parley.security.schemes.http import Basic
from parley.server.http1.serving import KnownProxies
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio


def scope(
    address: str = "198.51.100.1", token: str | None = None, **headers: str
) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    if token is not None:
        pairs.append((b"authorization", token.encode()))
    return {"client": (address, 5), "headers": pairs, "query_string": b""}


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def failures(clock: Clock) -> Failures:
    return Failures(3, now=clock)


@pytest.fixture
def calls() -> list[str]:
    """The verified tokens."""
    return []


@pytest.fixture
def authenticator(failures: Failures, calls: list[str]) -> Authenticator:
    def judge(token: str) -> Caller | None:
        calls.append(token)
        return Caller(id="ada") if token == "right" else None

    return Authenticator([Bearer(judge).security], SchemeResources(failures=failures))


async def outcome(authenticator: Authenticator, request: dict[str, Any]) -> str:
    try:
        identified = authenticator(request)
        caller = identified if isinstance(identified, Caller) else await identified
    except UnauthenticatedError:
        return "401"
    except TooManyRequestsError:
        return "429"
    return caller.id


async def test_an_address_that_fails_too_often_is_refused_before_anything_is_verified(
    authenticator: Authenticator, calls: list[str], failures: Failures
) -> None:
    wrong = scope(token="Bearer wrong")
    assert [await outcome(authenticator, wrong) for _ in range(5)] == ["401"] * 3 + ["429"] * 2
    assert len(calls) == 3
    assert await outcome(authenticator, scope(token="Bearer right")) == "429"
    assert (failures.refused, failures.throttled) == (3, 3)
    assert authenticator.failures is failures


async def test_valid_credentials_of_another_address_are_not_affected(
    authenticator: Authenticator,
) -> None:
    for _ in range(5):
        await outcome(authenticator, scope(token="Bearer wrong"))
    assert await outcome(authenticator, scope("203.0.113.9", "Bearer right")) == "ada"


async def test_requests_without_credentials_are_no_failures(authenticator: Authenticator) -> None:
    assert [await outcome(authenticator, scope()) for _ in range(9)] == ["401"] * 9
    assert authenticator.failures.refused == 0


async def test_the_allowance_is_restored_evenly_and_whole_after_a_minute(
    authenticator: Authenticator, clock: Clock
) -> None:
    wrong = scope(token="Bearer wrong")
    for _ in range(50):
        await outcome(authenticator, wrong)
    clock.now += 19
    assert await outcome(authenticator, wrong) == "429"
    clock.now += 2
    assert [await outcome(authenticator, wrong) for _ in range(2)] == ["401", "429"]
    clock.now += 60
    assert [await outcome(authenticator, wrong) for _ in range(4)] == ["401"] * 3 + ["429"]


async def test_a_success_forgives_nothing(authenticator: Authenticator) -> None:
    wrong, right = scope(token="Bearer wrong"), scope(token="Bearer right")
    found = [await outcome(authenticator, each) for each in (wrong, wrong, right, wrong, wrong)]
    assert found == ["401", "401", "ada", "401", "429"]


async def test_addresses_of_one_ipv6_network_are_one_client(failures: Failures) -> None:
    for n in range(3):
        failures.note(scope(f"2001:db8:1:2:{n}::1"))
    with pytest.raises(TooManyRequestsError):
        failures.check(scope("2001:db8:1:2:ffff::1"))
    failures.check(scope("2001:db8:1:3::1"))


async def test_behind_a_trusted_proxy_the_address_is_the_one_that_it_added(clock: Clock) -> None:
    failures = Failures(1, trust_proxy=True, now=clock)
    proxy = "10.0.0.1"
    failures.note(scope(proxy, x_forwarded_for="1.2.3.4, 198.51.100.7"))
    failures.check(scope(proxy, x_forwarded_for="198.51.100.8"))
    with pytest.raises(TooManyRequestsError):
        failures.check(scope(proxy, x_forwarded_for="9.9.9.9, 198.51.100.7"))
    failures = Failures(1, now=clock)
    failures.note(scope(proxy, x_forwarded_for="1.2.3.4"))
    with pytest.raises(TooManyRequestsError):  # no setting says that the header is trusted
        failures.check(scope(proxy, x_forwarded_for="5.6.7.8"))


@pytest.mark.parametrize(
    ("header", "client"),
    [("1.2.3.4", "1.2.3.4"), ("1.2.3.4, unknown", "10.0.0.1"), ("_hidden, 10.0.0.2", "10.0.0.1")],
)
def test_what_is_no_address_is_no_client(header: str, client: str) -> None:
    headers = [(b"x-forwarded-for", header.encode())]
    proxies = KnownProxies("10.0.0.0/8")
    assert proxies.sender(headers, ("10.0.0.1", 5), "http")[0][0] == client  # type: ignore[index]


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("8.8.8.8,  1.2.3.4 ", "1.2.3.4"),
        ("1.2.3.4:5678", "1.2.3.4"),
        ("[2001:db8::1]:5678", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("unknown", "10.0.0.1"),
        ("", "10.0.0.1"),
        ("1.2.3.4, evil\n", "10.0.0.1"),
        ("10.0.0.1, 1.2.3.4", "1.2.3.4"),  # a caller names the proxy
    ],
)
def test_the_address_that_the_proxy_added_counts(header: str, address: str) -> None:
    assert client_address(scope("10.0.0.1", x_forwarded_for=header), trust_proxy=True) == address


@pytest.mark.parametrize(("known", "address"), [("172.16.0.1", "8.8.8.8"), ("*", "172.16.0.1")])
def test_behind_known_proxies_the_address_that_the_first_of_them_added_counts(
    monkeypatch: pytest.MonkeyPatch, known: str, address: str
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", known)
    asked = scope("8.8.8.8", x_forwarded_for="8.8.8.8, 172.16.0.1")  # as rewritten by uvicorn
    asked["extensions"] = {CONNECTION: {"client": ("127.0.0.1", 5)}}
    assert client_address(asked, trust_proxy=True) == address


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
        ("fe80::x", "fe80::x"),
    ],
)
def test_what_counts_as_one_client(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_the_memory_for_addresses_and_ids_is_bounded(failures: Failures) -> None:
    for n in range(MAX_TRACKED + 500):
        failures.note(scope(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"), [("basic", f"user{n}")])
    assert len(failures._addresses) == len(failures._ids) == MAX_TRACKED


async def test_what_is_old_is_forgotten(failures: Failures, clock: Clock) -> None:
    failures.note(scope(), [("basic", "ada")])
    assert failures.any_recent
    clock.now += 60
    failures.report()
    assert not failures.any_recent


async def test_without_a_limit_failures_are_still_counted(clock: Clock) -> None:
    failures = Failures(0, now=clock)
    for _ in range(100):
        failures.note(scope())
        failures.check(scope())
    assert (failures.refused, failures.throttled) == (100, 0)
    failures = Failures(1, now=clock)
    failures.note(scope())
    with pytest.raises(TooManyRequestsError):
        failures.check(scope())


async def test_each_refusal_is_logged_without_secrets_and_not_more_than_some(
    authenticator: Authenticator, failures: Failures, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    for n in range(50):
        failed = scope(f"198.51.100.{n}", f"Bearer s3cret{n}")
        assert await outcome(authenticator, failed) == "401"
    assert caplog.messages[0] == "credentials rejected from 198.51.100.0: an unknown token (bearer)"
    assert len(caplog.messages) == LINES_PER_MINUTE
    failures.report()
    assert caplog.messages[-1] == (
        "within a minute 50 credentials were rejected, and 0 requests from addresses that had "
        "failed too often; if these came through a proxy, set trust_proxy"
    )
    assert "s3cret" not in caplog.text
    failures.report()
    assert len(caplog.messages) == LINES_PER_MINUTE + 1
    await outcome(authenticator, scope(token="Bearer again"))
    assert len(caplog.messages) == LINES_PER_MINUTE + 2
    timer = failures._timer
    await failures.close()
    assert timer is not None
    assert timer.cancelled()


async def test_a_minute_is_reported_at_its_end(
    failures: Failures, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    for _ in range(LINES_PER_MINUTE + 2):
        failures.note(scope())
    clock.now += 61
    failures.note(scope())
    assert "within a minute 13 credentials" in caplog.messages[LINES_PER_MINUTE]
    await failures.close()


async def test_guesses_that_wait_are_not_verified_once_too_many_have_failed(
    failures: Failures,
) -> None:
    tried: list[str] = []

    def judge(user: str, password: str) -> None:
        tried.append(password)

    resources = SchemeResources(failures=failures)
    authenticator = Authenticator([Basic(judge).security], resources)

    def guess(n: int) -> dict[str, Any]:
        word = base64.b64encode(f"ada:guess{n}".encode()).decode()
        return scope(token=f"Basic {word}")

    found = await asyncio.gather(*[outcome(authenticator, guess(n)) for n in range(50)])
    # Concurrent attempts are not delayed; later ones are.
    assert len(tried) <= 3 + 4
    assert found.count("429") == 50 - len(tried)
