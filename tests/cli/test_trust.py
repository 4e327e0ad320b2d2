"""The receivers of credentials: the named agent, and other origins that the caller allows."""

from __future__ import annotations

import pytest

from tests.cli.scripted import TASK_ID, Answer, ScriptedAgent, message, task

SECRET = "the-s3cret"
BEARER = ("--bearer", SECRET)


@pytest.fixture
def elsewhere():
    """An agent at another origin, to which the first agent's card leads."""
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
    assert f"JSONRPC 1.0 {elsewhere.url}/rpc is skipped" in ran.stderr
    assert "passed over" not in parley(*flags).stderr
    said = parley(*flags, "--transport", "jsonrpc").stderr
    assert f"to allow it: --trust-origin {elsewhere.url}\n" in said
    ran = parley("card", "get", "-a", agent.url, *BEARER)
    assert ran.field("Selected") == f"JSONRPC 1.0 {agent.url}/rpc"
    assert elsewhere.asked == []


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


# -- files that are found, not named --------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, parley, monkeypatch):
    """The command's folder; a test writes ``.env`` in the folder above it."""
    inside = tmp_path / "cloned" / "src"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    return inside


def own_file(tmp_path, text):
    own = tmp_path / ".config" / "a2a-cli" / ".env"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    own.chmod(0o600)


GET = ("task", "get", TASK_ID)
MISDIRECTED = [
    (setting, credential)
    for setting in ("AGENT_CARD", "TRUST_ORIGIN", "INSECURE", "SVC_PARAM")
    for credential in ("flag", "environment", "own", "parameter", "password")
    # in these pairs both are the same setting
    if (setting, credential) not in (("AGENT_CARD", "password"), ("SVC_PARAM", "parameter"))
]


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize(("setting", "credential"), MISDIRECTED)
def test_a_file_that_nobody_named_decides_nothing_about_credentials_from_elsewhere(
    parley, led_away, elsewhere, folder, tmp_path, monkeypatch, above, setting, credential
):
    ready(led_away)
    value = {"INSECURE": "yes", "SVC_PARAM": "host: other.example"}.get(setting, elsewhere.url)
    file = (folder.parent if above else folder) / ".env"
    file.write_text(f"A2ACLI_{setting}={value}\n")
    flags = [] if setting == "AGENT_CARD" else ["-a", led_away.url]
    came_from = {
        "flag": "the bearer token is not from this file (--bearer)",
        "environment": "the API key is not from this file (A2ACLI_API_KEY)",
        "own": "the bearer token is not from this file (A2ACLI_BEARER in ",
        "parameter": "a service parameter is not from this file (--svc-param)",
        "password": "the password in the agent's address is not from this file (--agent-card)",
    }[credential]
    match credential:
        case "flag":
            flags += BEARER
        case "environment":
            monkeypatch.setenv("A2ACLI_API_KEY", SECRET)
        case "own":
            own_file(tmp_path, f"A2ACLI_BEARER={SECRET}\n")
        case "parameter":
            flags += ["--svc-param", f"Authorization:Bearer {SECRET}"]
        case "password":
            flags = ["-a", led_away.url.replace("://", f"://me:{SECRET}@")]
    ran = parley(*GET, *flags, "-o", "json")
    assert (ran.status, ran.error["code"]) == (2, "A2ACLI_ERR_USAGE"), ran
    assert str(file) in ran.error["message"]
    assert f"sets A2ACLI_{setting};" in ran.error["message"]
    assert came_from in ran.error["message"]
    flag = setting.lower().replace("_", "-")
    assert f"--{flag} yourself, or trust the file with --config {file};" in ran.error["hint"]
    assert led_away.fetched == elsewhere.fetched == elsewhere.asked == []
    assert SECRET not in ran.stdout + ran.stderr
    # The hint in the error works.
    if setting == "AGENT_CARD":
        elsewhere.card["supportedInterfaces"] = [elsewhere.interface()]
    elif setting != "TRUST_ORIGIN":
        led_away.card["supportedInterfaces"] = [led_away.interface()]
    ran = parley(*GET, *flags, "--config", str(file))
    assert ran.status == 0, ran
    shown = parley("config", "show", *flags)
    assert shown.status == 0
    assert f"sets A2ACLI_{setting};" in shown.stderr
    assert SECRET not in shown.stdout + shown.stderr


def test_a_file_says_where_its_own_credentials_go(parley, agent, folder):
    ready(agent)
    file = folder.parent / ".env"
    file.write_text(f"A2ACLI_AGENT_CARD={agent.url}\nA2ACLI_BEARER={SECRET}\nA2ACLI_INSECURE=1\n")
    file.chmod(0o600)
    assert parley(*GET).status == 0
    assert agent.asked[-1].headers["authorization"] == f"Bearer {SECRET}"
    # A credential that is not in the file may not be sent there.
    assert parley(*GET, "--api-key", "k").status == 2
    # If the user names the agent, the call succeeds, also with ``--no-insecure``.
    assert parley(*GET, "-a", agent.url, "--no-insecure").status == 0


def test_without_credentials_a_file_may_name_the_agent(parley, agent, folder):
    ready(agent)
    (folder.parent / ".env").write_text(f"A2ACLI_AGENT_CARD={agent.url}\nA2ACLI_INSECURE=yes\n")
    assert parley(*GET).status == 0
    assert parley(*GET, "--svc-param", "A2A-Extensions:urn:example:1").status == 0
    assert parley(*GET, *BEARER).status == 2


def test_settings_that_decide_nothing_of_the_kind_may_be_in_any_file(parley, agent, folder):
    ready(agent)
    (folder.parent / ".env").write_text(
        "A2ACLI_TIMEOUT=20s\nA2ACLI_INSECURE=no\nA2ACLI_TRANSPORT=jsonrpc\nA2ACLI_VERBOSE=yes\n"
    )
    assert parley(*GET, "-a", agent.url, *BEARER).status == 0
