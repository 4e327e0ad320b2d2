"""Who gets the credentials: the agent that was named, and who else the caller allows."""

from __future__ import annotations

import pytest

from .scripted import TASK_ID, Answer, ScriptedAgent, message, task

SECRET = "the-s3cret"
BEARER = ("--bearer", SECRET)


@pytest.fixture
def elsewhere():
    """An agent at another origin, which the card of the first one names."""
    scripted = ScriptedAgent()
    yield scripted
    scripted.close()


@pytest.fixture
def led_away(agent, elsewhere):
    agent.card["supportedInterfaces"] = [elsewhere.interface()]
    agent.card["capabilities"] |= {"pushNotifications": True, "extendedAgentCard": True}
    agent.card["securitySchemes"] = {"b": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
    ready(elsewhere)
    return agent


def ready(agent):
    agent.says("GetTask", Answer(result=task()))
    agent.says("SendStreamingMessage", Answer(events=[{"message": message()}]))


COMMANDS = [
    ("send", "hi"),
    ("send", "hi", "--stream"),
    ("send", "hi", "--async"),
    ("task", "get", TASK_ID),
    ("task", "get", TASK_ID, "--wait"),
    ("task", "list"),
    ("task", "cancel", TASK_ID),
    ("task", "subscribe", TASK_ID),
    ("task", "push-config", "create", TASK_ID, "https://hooks.example/1"),
    ("task", "push-config", "get", TASK_ID, "c-1"),
    ("task", "push-config", "list", TASK_ID),
    ("task", "push-config", "delete", TASK_ID, "c-1"),
    ("card", "get", "--extended"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_takes_credentials_to_another_origin(parley, led_away, elsewhere, command):
    flags = ("-a", led_away.url, "-o", "json")
    for given in (BEARER, ("--api-key", SECRET), ("--svc-param", f"X-Team:{SECRET}")):
        ran = parley(*command, *flags, *given)
        assert ran.status == 2, ran
        error = ran.lines[-1]["error"] if "--stream" in command else ran.error
        assert error["code"] == "A2ACLI_ERR_USAGE"
        assert f"is to be called at {elsewhere.url}, but" in error["message"]
        assert f"given for {led_away.url}: nothing was sent there" in error["message"]
        assert error["hint"].endswith(f"--trust-origin {elsewhere.url}")
        assert SECRET not in ran.stdout + ran.stderr
    assert elsewhere.asked == elsewhere.fetched == []
    assert all(SECRET not in str(asked.headers.get("authorization")) for asked in led_away.fetched)


def test_what_the_refusal_says_to_do_does_it(parley, led_away, elsewhere, monkeypatch, tmp_path):
    flags = ("task", "get", TASK_ID, "-a", led_away.url, *BEARER)
    sent = f"Bearer {SECRET}"
    assert parley(*flags, "--trust-origin", elsewhere.url).status == 0
    assert elsewhere.asked[-1].headers["authorization"] == sent
    more = ("--trust-origin", "https://other.example", "--trust-origin", elsewhere.url)
    assert parley(*flags, *more).status == 0
    with monkeypatch.context() as context:
        context.setenv("A2ACLI_TRUST_ORIGIN", f"https://other.example,{elsewhere.url}")
        assert parley(*flags).status == 0
        shown = parley("config", "show").stdout
        assert f"trust-origin: https://other.example, {elsewhere.url} (A2ACLI_TRUST_OR" in shown
    file = tmp_path / "agent.env"
    file.write_text(f"A2ACLI_TRUST_ORIGIN='{elsewhere.url}/'\n")
    assert parley(*flags, "--config", str(file)).status == 0
    assert parley(*flags).status == 2


def test_what_is_no_origin_is_refused_where_it_stands(parley, monkeypatch):
    ran = parley("task", "get", "t", "--trust-origin", "https://a/rpc", "-o", "json")
    assert (ran.status, ran.error["code"]) == (2, "A2ACLI_ERR_USAGE")
    assert ran.error["message"].startswith("--trust-origin: 'https://a/rpc' is more than an origin")
    monkeypatch.setenv("A2ACLI_TRUST_ORIGIN", "*")
    ran = parley("task", "get", "t", "-o", "json")
    assert ran.error["message"].startswith("A2ACLI_TRUST_ORIGIN: '*' is no origin")


def test_the_agents_own_origin_is_preferred_and_that_is_said(parley, agent, elsewhere):
    ready(agent)
    agent.card["supportedInterfaces"] = [elsewhere.interface(), agent.interface()]
    flags = ("task", "get", TASK_ID, "-a", agent.url, *BEARER)
    ran = parley(*flags, "--verbose")
    assert ran.status == 0
    assert f"JSONRPC 1.0 {elsewhere.url}/rpc is passed over" in ran.stderr
    assert "passed over" not in parley(*flags).stderr
    assert "--trust-origin" in parley(*flags, "--transport", "jsonrpc").stderr
    ran = parley("card", "get", "-a", agent.url, *BEARER)
    assert ran.field("Selected") == f"JSONRPC 1.0 {agent.url}/rpc"
    assert elsewhere.asked == []


def test_a_card_elsewhere_is_shown_with_a_warning(parley, led_away, elsewhere):
    ran = parley("card", "get", "-a", led_away.url, *BEARER)
    assert (ran.status, ran.field("Selected")) == (0, "none")
    assert f"is to be called at {elsewhere.url}" in ran.stderr
    assert "--trust-origin" in ran.stderr
    ran = parley("card", "get", "-a", led_away.url)
    assert ran.field("Selected") == f"JSONRPC 1.0 {elsewhere.url}/rpc"


def test_commands_to_go_on_with_keep_who_is_trusted(parley, led_away, elsewhere):
    elsewhere.says("SendStreamingMessage", Answer(events=[{"task": task("INPUT_REQUIRED")}]))
    flags = ("-a", led_away.url, *BEARER, "--trust-origin", elsewhere.url)
    ran = parley("send", "hi", *flags)
    assert f"--trust-origin {elsewhere.url}" in ran.field("Next")
    assert SECRET not in ran.stdout + ran.stderr


def test_a_password_in_the_address_is_a_credential_and_never_shown(parley, led_away, elsewhere):
    address = led_away.url.replace("://", f"://me:{SECRET}@")
    ran = parley("task", "get", TASK_ID, "-a", address, "--debug", "--verbose")
    assert ran.status == 2
    assert SECRET not in ran.stdout + ran.stderr
    assert elsewhere.asked == []
    elsewhere.says("SendStreamingMessage", Answer(events=[{"task": task("INPUT_REQUIRED")}]))
    ran = parley("send", "hi", "-a", address, "--trust-origin", elsewhere.url)
    assert f"-a {led_away.url} " in ran.field("Next")
    ran = parley("config", "show", "-a", address)
    assert ran.field("agent-card") == f"{led_away.url} (flag)"
    assert SECRET not in ran.stdout + ran.stderr
    for command in (("task", "get", TASK_ID), ("card", "get")):
        ran = parley(*command, "-a", address, "--bearer", "token-1", "-o", "json")
        assert (ran.status, ran.error["code"]) == (2, "A2ACLI_ERR_USAGE")
        assert "a user and a password" in ran.error["message"]
        assert SECRET not in ran.stdout + ran.stderr
