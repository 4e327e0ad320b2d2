"""The same forms for the agent everywhere: a URL, host, card file or URN, as argument or ``-a``."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.scripted import TASK_ID, Answer, message, task

URN = "urn:air:example.com:agent:scripted"
COMMANDS = {
    "card get": (),
    "card validate": (),
    "card verify": (),
    "card sign": ("--signing-keys", "keys.json"),
    "send": ("Hello",),
    "task get": (TASK_ID,),
    "task list": (),
    "task download": (TASK_ID, "out"),
    "task cancel": (TASK_ID,),
    "task subscribe": (TASK_ID,),
    "task authorize": (TASK_ID,),
    "task push-config create": (TASK_ID, "https://hooks.example.com/a2a"),
    "task push-config get": (TASK_ID, "hook-1"),
    "task push-config list": (TASK_ID,),
    "task push-config set": (TASK_ID, "hook-1", "--events", "all"),
    "task push-config history": (TASK_ID, "hook-1"),
    "task push-config delete": (TASK_ID, "hook-1"),
    "auth login": ("--flow", "bearer", "--bearer", "token-1"),
    "auth logout": (),
}
"""Every command with an agent argument, and its other arguments."""

FORMS = {
    "url": lambda agent: agent.url,
    "host": lambda agent: agent.url.removeprefix("http://"),
    "file": lambda agent: "./card.json",
    "urn": lambda agent: URN,
}


@pytest.fixture
def named(agent, tmp_path, monkeypatch):
    """The agent, with a card file and a registry that list it."""
    entry = {
        "identifier": URN,
        "displayName": "Scripted",
        "type": "application/a2a-agent-card+json",
    }
    entry["url"] = f"{agent.url}/.well-known/agent-card.json"
    (tmp_path / "agents.json").write_text(json.dumps({"specVersion": "1.0", "entries": [entry]}))
    monkeypatch.setenv("PARLEY_REGISTRY", "agents.json")
    monkeypatch.setenv("PARLEY_AUTH_STORAGE", "file")
    monkeypatch.setenv("PARLEY_AUTH_FOLDER", str(tmp_path / "logins"))
    agent.card["capabilities"] = {"pushNotifications": True}
    (tmp_path / "card.json").write_text(json.dumps(agent.card))
    done = Answer(result=task())
    hook = {"id": "hook-1", "taskId": TASK_ID, "url": "https://hooks.example.com/a2a"}
    agent.says("SendMessage", Answer(result={"message": message()}))
    agent.says("GetTask", done)
    agent.says("CancelTask", done)
    agent.says("ListTasks", Answer(result={"tasks": [], "totalSize": 0}))
    for name in ("Create", "Get"):
        agent.says(f"{name}TaskPushNotificationConfig", Answer(result=hook))
    agent.says("ListTaskPushNotificationConfigs", Answer(result={"configs": [hook]}))
    agent.says("DeleteTaskPushNotificationConfig", Answer(result={}))
    return agent


@pytest.mark.parametrize("place", ["first", "flag"])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "url"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_every_form_of_the_agent(parley, named, tmp_path, command, form, place):
    """A2ACLI_CARD_GET_005"""
    if command == "card sign":
        parley("keys", "generate", "keys.json")

    def ran(reference):
        words = command.split()
        logins = tmp_path / "logins"
        if command == "auth logout":
            parley("auth", "login", named.url, "--flow", "bearer", "--bearer", "token-1")
        elif logins.exists():
            [each.unlink() for each in logins.iterdir()]
        given = COMMANDS[command]
        about = (reference, *given) if place == "first" else (*given, "-a", reference)
        return parley(*words, *about)

    expected, found = ran(named.url), ran(FORMS[form](named))
    assert found.status == expected.status, found.stderr
    for text in (expected.stderr, found.stderr):
        assert "cannot be read" not in text
    if command in ("card sign", "task download"):  # signatures and numbered files differ
        assert bool(found.stdout) == bool(expected.stdout)
    else:
        shown = [re.sub(r" (-a|at) \S+", "", ran.stdout) for ran in (found, expected)]
        assert shown[0] == shown[1]


FAILS = {
    "a URL": "http://127.0.0.1:{port}/nothing.json",
    "a host": "127.0.0.1:{port}/nothing",
    "a file": "./nothing.json",
    "a URN": "urn:air:example.com:agent:nobody",
    "no agent": "a b c",
}


@pytest.mark.parametrize("form", FAILS)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "auth logout"])
def test_one_sentence_says_what_names_no_agent(parley, named, command, form):
    if command == "card sign":
        parley("keys", "generate", "keys.json")
    named.card_status = 404
    reference = FAILS[form].format(port=named.url.rpartition(":")[2])
    ran = parley(*command.split(), reference, *COMMANDS[command], "-o", "json")
    assert (ran.status, ran.error["code"]) == (3, "A2ACLI_ERR_CARD_NOT_FOUND"), ran
    assert ran.error["hint"] == (
        "name an agent by a host, an address, the URL of a card, a card file, or an identifier in "
        "a "
        "registry (urn:...)"
    )


def test_credentials_of_an_agent_do_not_go_to_its_registry(parley, named, monkeypatch):
    monkeypatch.setenv("A2ACLI_BEARER", "for-the-agent")
    named.card["securitySchemes"] = {"b": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    assert parley("task", "get", URN, TASK_ID).status == 0
    assert named.asked[-1].headers["authorization"] == "Bearer for-the-agent"
    assert all("authorization" not in fetched.headers for fetched in named.fetched)


def test_credentials_of_a_registry_go_there_alone_and_are_shown_nowhere(parley, named, monkeypatch):
    """A2ACLI_AUTH_004"""
    monkeypatch.setenv("PARLEY_REGISTRY_BEARER", "for-the-registry")
    ran = parley("task", "get", URN, TASK_ID, "--debug")
    assert ran.status == 0
    assert "for-the-registry" not in ran.stdout + ran.stderr
    assert "for-the-registry" not in str(named.asked) + str(named.fetched)
    assert parley("config", "show").field("registry-bearer").startswith("set, not shown")
    ran = parley("task", "get", URN, TASK_ID, "--registry", f"{named.url}/", "--debug")
    assert ran.status == 3
    assert any("for-the-registry" in str(each.headers) for each in named.asked + named.fetched)
    assert "for-the-registry" not in ran.stdout + ran.stderr


def test_an_argument_that_may_be_left_out_is_left_out_behind_an_address(parley, named, tmp_path):
    named.says("GetTask", Answer(result=task(artifacts=[
        {"artifactId": "a", "name": "a.txt", "parts": [{"text": "hi"}]}])))  # fmt: skip
    ran = parley("task", "download", named.url, TASK_ID)
    assert ran.status == 0, ran.stderr
    assert (tmp_path / "a.txt").read_text() == "hi"
