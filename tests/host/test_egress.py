"""The egress policies of a server: options, environment, and what agents may call."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, Turn
from parley.host.egress import EgressPolicies, read_egress
from parley.host.options import ServerOptions, is_of_this_machine
from parley.security import Egress
from parley.security.egress import ForbiddenAddress
from parley.server.app import Settings
from parley.server.run import serving


def test_the_environment_has_lists() -> None:
    egress = read_egress(
        environ={
            "PARLEY_EGRESS_ALLOW": "10.1.0.0/16, hooks.internal:8443",
            "PARLEY_EGRESS_DENY": "*.example.net",
            "PARLEY_EGRESS_ONLY_ALLOWED": "1",
        }
    )
    egress.check_address("10.1.2.3", 80)
    egress.check_address("10.9.9.9", 8443, host="hooks.internal")
    for address, host in (("8.8.8.8", ""), ("10.1.2.3", "a.example.net"), ("10.2.0.1", "")):
        with pytest.raises(ForbiddenAddress):
            egress.check_address(address, 443, host=host)


def test_options_replace_variables() -> None:
    environ = {"PARLEY_EGRESS_ALLOW": "10.1.0.0/16", "PARLEY_EGRESS_DENY": "8.8.8.8"}
    egress = read_egress(["10.2.0.0/16"], environ=environ)
    egress.check_address("10.2.0.1")
    for address in ("10.1.0.1", "8.8.8.8"):
        with pytest.raises(ForbiddenAddress):
            egress.check_address(address)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARLEY_EGRESS_ALLOW", "http://host/"),
        ("PARLEY_EGRESS_ALLOW", "*"),
        ("PARLEY_EGRESS_DENY", "host:99999"),
        ("PARLEY_EGRESS_ONLY_ALLOWED", "perhaps"),
    ],
)
def test_what_is_wrong_in_the_environment_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_egress(environ={name: value})


def test_a_setting_adds_to_its_use_alone_and_deny_wins() -> None:
    policies = EgressPolicies.of(
        ServerOptions(
            egress=Egress.of(deny=["10.1.9.0/24"]),
            allow_private_webhooks=("10.1.0.0/16",),
            allow_private_agents=True,
        )
    )
    policies.webhooks.check_address("10.1.2.3")
    policies.agents.check_address("127.0.0.1")
    for policy in (policies.all, policies.files):
        with pytest.raises(ForbiddenAddress):
            policy.check_address("10.1.2.3")
    for policy in (policies.webhooks, policies.agents):
        with pytest.raises(ForbiddenAddress, match="denied"):
            policy.check_address("10.1.9.1")


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Egress\.of"):
        parley.asgi(Agent("A"), egress=["10.0.0.0/8"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "url", "expected"),
    [
        (Settings(), None, True),
        (Settings(), "http://localhost:9999", True),
        (Settings(), "https://agents.example.com", False),
        (Settings(trust_proxy=True), None, False),
        (Settings(allowed_hosts=("agents.example.com",)), None, False),
    ],
)
def test_a_public_name_or_a_proxy_brings_callers_from_elsewhere(
    settings: Settings, url: str | None, expected: bool
) -> None:
    assert is_of_this_machine(settings, url) is expected


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "hello"),
        ({"egress": Egress.of(deny=["127.0.0.0/8"])}, "AddressNotAllowed"),
        ({"allow_private_agents": False}, "AddressNotAllowed"),
        ({"allow_private_agents": ["127.0.0.1"]}, "hello"),
    ],
)
@pytest.mark.parametrize("way", ["delegate", "library", "thread"])
async def test_an_agent_calls_others_of_its_machine_where_nobody_else_calls_it(
    options: dict[str, object], expected: str, way: str
) -> None:
    peer, planner = Agent("Peer"), Agent("Planner")

    @peer.skill
    def greet(text: str) -> str:
        return "hello"

    if way == "thread":

        @planner.skill
        def plan_in_thread(text: str) -> str:
            try:
                with parley.connect_sync(text, auth=False) as remote:
                    return remote.send("go").text
            except parley.ClientError as error:
                return type(error).__name__

    else:

        @planner.skill
        async def plan(turn: Turn) -> str:
            try:
                if way == "delegate":
                    return (await turn.delegate(turn.text, "go")).text
                async with parley.connect(turn.text, auth=False) as remote:
                    return (await remote.send("go")).text
            except parley.ClientError as error:
                return type(error).__name__

    app = parley.asgi(planner, **options)  # type: ignore[arg-type]
    async with (
        serving(parley.asgi(peer)) as there,
        serving(app) as url,
        parley.connect(url) as remote,
    ):
        assert (await remote.send(there)).text == expected


@pytest.mark.anyio
async def test_an_agent_under_another_asgi_server_is_told_the_setting_to_add(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller = Agent("Caller")

    @caller.skill
    async def ask(turn: Turn) -> str:
        async with turn.connect("http://127.0.0.1:9") as other:
            return (await other.send("go")).text

    app = parley.asgi(caller)  # nothing says where it listens, as under uvicorn
    async with parley.connect(app) as remote:
        await remote.send("go")
    assert 'allow_private_agents=["127.0.0.1"]' in caplog.text
