"""The agent that a command calls, the method of the call, and the credentials."""

import json
import socket

import pytest

from tests.cli.scripted import TASK_ID, Answer, message, task

KEY_IN_HEADER = {"apiKeySecurityScheme": {"location": "header", "name": "X-Agent-Key"}}
KEY_IN_QUERY = {"apiKeySecurityScheme": {"location": "query", "name": "key"}}
KEY_IN_COOKIE = {"apiKeySecurityScheme": {"location": "cookie", "name": "session"}}
OLD_STATUS = {"state": "completed"}
BEARER = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}


@pytest.fixture
def ready(agent):
    agent.says("GetTask", Answer(result=task()))
    agent.says("SendStreamingMessage", Answer(events=[{"message": message()}]))
    return agent


def get(parley, agent, *flags):
    return parley("task", "get", TASK_ID, "-a", agent.url, *flags)


def test_a_card_is_had_from_a_host_a_url_and_a_file(parley, ready, tmp_path):
    """A2ACLI_CARD_GET_001"""
    file = tmp_path / "card.json"
    file.write_text(json.dumps(ready.card))
    host = ready.url.removeprefix("http://")
    for reference in (
        ready.url,
        host,
        f"{ready.url}/anywhere/my-card.json",
        file.as_uri(),
        str(file),
        "card.json",
    ):
        ran = parley("card", "get", "-a", reference)
        assert ran.status == 0, ran.stderr
        assert ran.stdout.partition("\n")[0] == "Name: Scripted agent"
        assert ran.field("Streaming") == "yes"
        assert ran.field("Interface") == f"JSONRPC 1.0 {ready.url}/rpc"
        assert ran.field("Selected") == f"JSONRPC 1.0 {ready.url}/rpc"
        assert ran.field("Skill") == "s"
    paths = [fetched.path for fetched in ready.fetched]
    assert paths == ["/.well-known/agent-card.json"] * 2 + ["/anywhere/my-card.json"]
    # A card file works for calls, too.
    assert parley("task", "get", TASK_ID, "-a", str(file)).status == 0


@pytest.mark.slow
def test_credentials_go_where_the_card_says(parley, ready, monkeypatch):
    """A2ACLI_AUTH_001"""
    ready.card["securitySchemes"] = {"b": BEARER}
    assert get(parley, ready, "--bearer", "token-1").status == 0
    assert ready.asked[-1].headers["authorization"] == "Bearer token-1"

    ready.card["securitySchemes"] = {"k": KEY_IN_HEADER}
    get(parley, ready, "--api-key", "key-1")
    assert ready.asked[-1].headers["x-agent-key"] == "key-1"
    assert "authorization" not in ready.asked[-1].headers

    ready.card["securitySchemes"] = {"k": KEY_IN_QUERY}
    get(parley, ready, "--api-key", "key 1")
    assert ready.asked[-1].path in {"/rpc?key=key+1", "/rpc?key=key%201"}

    ready.card["securitySchemes"] = {"k": KEY_IN_COOKIE}
    get(parley, ready, "--api-key", "key-1")
    assert ready.asked[-1].headers["cookie"] == "session=key-1"

    monkeypatch.setenv("A2ACLI_BEARER", "token-2")
    get(parley, ready, "--svc-param", "x-trace-id:abc")
    assert ready.asked[-1].headers["authorization"] == "Bearer token-2"
    assert ready.asked[-1].headers["x-trace-id"] == "abc"
    option = parley("send", "--help").stdout.partition("--svc-param")[2].partition("--insecure")[0]
    assert not any(word in option.lower() for word in ("credential", "auth", "token"))


def test_each_credential_has_a_variable_and_help_says_why(parley, ready, monkeypatch):
    """A2ACLI_AUTH_002"""
    shown = parley("send", "--help").stdout
    assert "A2ACLI_BEARER" in shown
    assert "A2ACLI_API_KEY" in shown
    assert "process table" in shown
    assert "history" in shown
    ready.card["securitySchemes"] = {"b": BEARER}
    monkeypatch.setenv("A2ACLI_BEARER", "of-the-environment")
    get(parley, ready)
    assert ready.asked[-1].headers["authorization"] == "Bearer of-the-environment"
    get(parley, ready, "--bearer", "of-the-flag")
    assert ready.asked[-1].headers["authorization"] == "Bearer of-the-flag"


@pytest.mark.slow
def test_switching_verification_off_is_said_aloud(parley, ready, monkeypatch):
    """A2ACLI_AUTH_003"""
    assert "SECURITY RISK" not in get(parley, ready, "--bearer", "token-1").stderr
    assert "certificate is not checked" in get(parley, ready, "--insecure").stderr
    ran = get(parley, ready, "--insecure", "--bearer", "token-1")
    assert "SECURITY RISK" in ran.stderr
    monkeypatch.setenv("A2ACLI_INSECURE", "true")
    assert "certificate is not checked" in get(parley, ready).stderr
    assert "certificate is not checked" not in get(parley, ready, "--no-insecure").stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", [KEY_IN_HEADER, KEY_IN_QUERY, KEY_IN_COOKIE, BEARER])
def test_no_flag_makes_credentials_visible(parley, agent, where):
    """A2ACLI_AUTH_004"""
    secrets = ("s3cret/token=", "s3cret key", "s3cret-param")
    agent.card["securitySchemes"] = {"x": where}
    said = f"no {secrets[0]}, no {secrets[1]}, no Bearer {secrets[2]}"
    agent.says("GetTask", Answer(error={"code": -32603, "message": said}))
    credentials = ("--bearer", secrets[0], "--api-key", secrets[1])
    parameter = ("--svc-param", f"X-Other: Bearer {secrets[2]}")
    for flags in (("--debug", "--verbose"), ("--debug", "--verbose", "-o", "json"), ("--debug",)):
        ran = get(parley, agent, *credentials, *parameter, *flags)
        assert ran.status == 1
        assert "POST" in ran.stderr
        assert "s3cret" not in ran.stdout + ran.stderr
    shown = parley("config", "show", *credentials, *parameter, "--debug")
    assert "s3cret" not in shown.stdout + shown.stderr
    shown = parley("config", "show", *credentials, *parameter, "-o", "json")
    assert "s3cret" not in shown.stdout + shown.stderr


def test_debug_shows_the_messages_of_the_protocol(parley, ready):
    """A2ACLI_OUT_007"""
    ran = get(parley, ready, "--debug")
    assert f'"method":"GetTask","params":{{"id":"{TASK_ID}"}}' in ran.stderr
    assert '"result":' in ran.stderr.replace(" ", "")
    assert "jsonrpc" not in get(parley, ready, "--verbose").stderr


def test_a_secret_that_looks_like_a_name_breaks_no_document(parley, agent):
    """A2ACLI_AUTH_004"""
    agent.says("GetTask", Answer(error={"code": -32603, "message": "a code, an error"}))
    ran = get(parley, agent, "--bearer", "code", "--api-key", "error", "-o", "json")
    assert ran.error["message"] == "a [redacted], an [redacted]"


@pytest.mark.parametrize("answer", [401, 403])
def test_missing_and_refused_credentials_are_told_apart(parley, agent, answer):
    agent.card["securitySchemes"] = {"k": KEY_IN_HEADER}
    agent.says("GetTask", Answer(status=answer))
    ran = get(parley, agent, "-o", "json")
    assert (ran.status, ran.error["code"]) == (4, "A2ACLI_ERR_CREDENTIALS_MISSING")
    assert "A2ACLI_API_KEY" in ran.error["hint"]
    ran = get(parley, agent, "-o", "json", "--api-key", "wrong")
    assert (ran.status, ran.error["code"]) == (4, "A2ACLI_ERR_AUTH_FAILED")


def test_the_transport_is_taken_from_the_card_in_its_order(parley, ready):
    """A2ACLI_TX_001"""
    ready.card["supportedInterfaces"] = [
        ready.interface(protocolBinding="SMOKE", url=f"{ready.url}/signals"),
        ready.interface(url=f"{ready.url}/first"),
        ready.interface(url=f"{ready.url}/second"),
    ]
    assert get(parley, ready).status == 0
    assert ready.asked[-1].path == "/first"
    ran = get(parley, ready, "--verbose")
    assert f"calling JSONRPC 1.0 {ready.url}/first in version 1.0" in ran.stderr


def test_a_transport_that_is_out_of_reach_is_replaced_and_that_is_said(parley, ready):
    """A2ACLI_TX_001"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        offers = [ready.interface(url=dead), ready.interface(url=f"{ready.url}/second")]
        ready.card["supportedInterfaces"] = offers
        ran = get(parley, ready)
        assert (ran.status, ready.asked[-1].path) == (0, "/second")
        said = f"JSONRPC 1.0 {dead} cannot be used; used JSONRPC 1.0 {ready.url}/second"
        assert said in ran.stderr
        ready.card["supportedInterfaces"] = offers[:1]
        assert get(parley, ready).status == 3


def test_a_preference_is_ordered_and_what_is_not_offered_is_skipped(parley, ready):
    """A2ACLI_TX_002"""
    ready.card["supportedInterfaces"] = [
        ready.interface(protocolBinding="HTTP+JSON", url=f"{ready.url}/rest"),
        ready.interface(),
    ]
    flags = ("--transport", "grpc", "--transport", "jsonrpc", "--transport", "rest")
    assert get(parley, ready, *flags).status == 0
    assert ready.asked[-1].path == "/rpc"
    ready.card["supportedInterfaces"] = [ready.interface()]
    ran = get(parley, ready, "--transport", "rest")
    assert ran.status == 0
    assert "none of the preferred transports is available; using JSONRPC" in ran.stderr
    ready.card["supportedInterfaces"] = [ready.interface(protocolBinding="SMOKE")]
    ran = get(parley, ready, "-o", "json")
    assert ran.status == 1
    assert "offers SMOKE 1.0" in ran.error["message"]


def test_the_tenant_of_the_interface_is_sent_exactly_or_not_at_all(parley, ready):
    """A2ACLI_TX_003"""
    get(parley, ready)
    assert "tenant" not in ready.params("GetTask")
    ready.card["supportedInterfaces"] = [ready.interface(tenant="Acme/1")]
    get(parley, ready)
    parley("send", "hi", "-a", ready.url)
    assert ready.params("GetTask")["tenant"] == "Acme/1"
    assert ready.params("SendStreamingMessage")["tenant"] == "Acme/1"


@pytest.mark.slow
def test_the_version_is_always_said_and_never_below_one(parley, ready):
    """A2ACLI_VER_001"""
    parley("send", "hi", "-a", ready.url)
    get(parley, ready)
    assert [asked.headers["a2a-version"] for asked in ready.asked] == ["1.0", "1.0"]
    ran = get(parley, ready, "--a2a-version", "2.0", "-o", "json")
    assert (ran.status, ran.error["code"]) == (2, "A2ACLI_ERR_USAGE")
    assert "the versions are 1.0, 0.3" in ran.error["message"]

    ready.card["supportedInterfaces"] = [ready.interface(protocolVersion="0.3")]
    count = len(ready.asked)
    ran = get(parley, ready, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "VersionNotSupportedError")
    assert "offers JSONRPC 0.3" in ran.error["message"]
    assert "--a2a-version 0.3" in ran.error["hint"]
    assert len(ready.asked) == count
    # An older version is used only on request.
    ready.says("tasks/get", Answer(result={**task(), "kind": "task", "status": OLD_STATUS}))
    ran = get(parley, ready, "--a2a-version", "0.3")
    assert (ran.status, ready.asked[-1].method) == (0, "tasks/get")
    assert ran.field("State") == "TASK_STATE_COMPLETED"

    ready.card["supportedInterfaces"] = [ready.interface()]
    refusal = {"code": -32009, "message": "only 1.5"}
    ready.says("GetTask", Answer(error=refusal))
    ran = get(parley, ready, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "VersionNotSupportedError")


def extended(ready):
    ready.card["securitySchemes"] = {"b": BEARER}
    ready.card["capabilities"]["extendedAgentCard"] = True
    more = {**ready.card, "name": "Scripted agent, at length"}
    ready.says("GetExtendedAgentCard", Answer(result=more))
    return more


def test_the_extended_card_is_had_with_a_scheme_that_the_public_card_names(parley, ready):
    """A2ACLI_CARD_GET_003 A2ACLI_AUTH_008"""
    more = extended(ready)
    ran = parley("card", "get", "-a", ready.url, "--extended", "--bearer", "token-1")
    assert ran.status == 0, ran.stderr
    assert ran.stdout.partition("\n")[0] == "Name: Scripted agent, at length"
    assert ready.asked[-1].headers["authorization"] == "Bearer token-1"
    assert all("authorization" not in fetched.headers for fetched in ready.fetched)
    flags = ("--extended", "--bearer", "token-1", "-o", "json")
    assert parley("card", "get", "-a", ready.url, *flags).document["name"] == more["name"]
    count = len(ready.asked)
    ran = parley("card", "get", "-a", ready.url, "--extended", "--api-key", "key-1", "-o", "json")
    assert (ran.status, ran.error["code"]) == (2, "A2ACLI_ERR_USAGE")
    assert "no security scheme for the API key" in ran.error["message"]
    assert len(ready.asked) == count


@pytest.mark.parametrize(
    ("challenge", "given", "shown"),
    [
        ("", ("--bearer", "token-1"), None),
        ('Basic realm="cards"', ("--bearer", "token-1"), None),
        ('Bearer realm="cards"', ("--api-key", "key-1"), None),
        ('Bearer realm="cards"', ("--bearer", "token-1"), "Bearer token-1"),
        ('ApiKey in="header", name="X-API-Key"', ("--bearer", "t", "--api-key", "key-1"), "key-1"),
    ],
)
def test_a_card_s_server_gets_a_credential_only_by_a_scheme_that_it_declares(
    parley, ready, challenge, given, shown
):
    """A2ACLI_AUTH_008"""
    ready.card_status, ready.challenge = 401, challenge
    ran = parley("card", "get", ready.url, *given)
    assert ran.status == 4
    sent = [
        fetched.headers.get("authorization") or fetched.headers.get("x-api-key")
        for fetched in ready.fetched
    ]
    assert sent[0] is None
    assert {each for each in sent if each} == ({shown} if shown else set())


def test_an_extended_card_that_the_card_does_not_declare_is_not_asked_for(parley, ready):
    """A2ACLI_VER_003"""
    ran = parley("card", "get", "-a", ready.url, "--extended", "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "UnsupportedOperationError")
    assert ready.asked == []


def test_a_card_is_checked_against_the_schema_on_demand(parley, ready):
    """A2ACLI_CARD_GET_002"""
    ran = parley("card", "get", "-a", ready.url, "--validate")
    assert ran.status == 0
    assert ran.stdout.startswith("Name: Scripted agent\n")
    assert "the card is valid" in ran.stderr
    ready.card["securitySchemes"] = {"eye": {"irisScan": {}}}
    ready.card["supportedInterfaces"] = [ready.interface(url="/rpc")]
    ready.card["securityRequirements"] = [{"schemes": {"ear": {}}}]
    assert parley("card", "get", "-a", ready.url).status == 0
    ran = parley("card", "get", "-a", ready.url, "--validate", "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "A2ACLI_ERR_CARD_INVALID")
    assert "securitySchemes" in ran.error["message"]
    ready.card["securitySchemes"] = {}
    ran = parley("card", "get", "-a", ready.url, "--validate", "-o", "json")
    assert "supportedInterfaces[0].url: '/rpc' is not absolute" in ran.error["message"]
    assert "'ear' is not among the securitySchemes" in ran.error["message"]
