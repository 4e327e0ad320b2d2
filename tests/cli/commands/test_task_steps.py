"""Commands on a task that waits for an event, a credential or a webhook."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from parley.store.events import Scope
from parley.store.sqlite.store import SqliteTaskStore
from tests.cli.scripted import TASK_ID, Answer, task
from tests.cli.store.test_store import fill
from tests.kit.records import creation

TOKEN = "hush-0a1b2c3d4e5f-hush"
BASIC = {"httpAuthSecurityScheme": {"scheme": "Basic"}}
KEY = {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}


def asking(callback="", **about):
    found = task("AUTH_REQUIRED", "May I?")
    request = {"id": "1", "scopes": ["mail.read"], **about}
    if callback:
        request["callback"] = callback
    found["status"]["message"]["parts"].append({"data": {"authorizationRequest": request}})
    return Answer(result=found)


@pytest.fixture
def typed(monkeypatch):
    def type_in(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return type_in


@pytest.mark.parametrize(
    ("scheme", "given", "posted"),
    [
        (None, TOKEN, {"access_token": TOKEN}),
        (KEY, TOKEN, {"api_key": TOKEN}),
        (BASIC, f"ada:{TOKEN}", {"username": "ada", "password": TOKEN}),
    ],
)
def test_what_is_piped_goes_to_the_callback(parley, agent, typed, scheme, given, posted):
    """A2ACLI_AUTH_011"""
    about = {"scheme": scheme} if scheme else {}
    agent.says("GetTask", asking(f"{agent.url}/callbacks/authorize/t", **about))
    typed(f"{given}\n")
    ran = parley("task", "authorize", TASK_ID, "-a", agent.url, "--debug")
    assert ran.status == 0, ran.stderr
    assert agent.params("callback") == posted
    assert "mail.read" in ran.stderr
    assert "May I?" in ran.stderr
    assert f"parley task get --wait -a {agent.url} {TASK_ID}" in ran.stderr
    assert TOKEN not in ran.stderr + ran.stdout
    assert not [asked for asked in agent.asked if asked.method == "SendMessage"]


def test_it_goes_nowhere_else(parley, agent, typed):
    agent.says("GetTask", asking("https://evil.example/t"))
    typed(TOKEN)
    ran = parley("task", "authorize", TASK_ID, "-a", agent.url)
    assert ran.status != 0
    assert "https://evil.example" in ran.stderr
    assert TOKEN not in ran.stderr


# -- ``parley complete``: a user completes an event by hand ----------------------------------------


STORE = ("--store", "sqlite:///shop.db")


@pytest.fixture
def shop(tmp_path):
    """A store with tasks of two agents, bank and shop."""
    asyncio.run(fill(tmp_path / "shop.db"))
    return tmp_path / "shop.db"


def value_in(path, agent, key):
    async def read():
        store = SqliteTaskStore(path)
        await store.open(lambda records: None)
        found = await store.event(agent, key)
        await store.close()
        return found

    return asyncio.run(read())


@pytest.mark.slow
def test_it_says_as_json_what_it_did(parley, shop):
    for is_new in (True, False):
        ran = parley("complete", "k", "--agent", "shop", *STORE, "-o", "json")
        assert ran.document == {
            "store": str(shop),
            "agent": "shop",
            "event": "k",
            "completed": is_new,
        }
    assert value_in(shop, "shop", "k") == b"null"


def test_the_only_agent_needs_no_name(parley, tmp_path):
    asyncio.run(_one_agent(tmp_path / "one.db"))
    ran = parley("complete", "k", "--store", "sqlite:///one.db")
    assert (ran.status, ran.field("Agent")) == (0, "shop")


async def _one_agent(path):
    store = SqliteTaskStore(path)
    await store.open(lambda records: None)
    await store.append(creation("t-1", scope=Scope("shop")))
    await store.close()


# -- ``parley task push-config`` -------------------------------------------------------------------


HOOK = "https://hooks.example/parley"
CONFIG = {"id": "p-1", "taskId": TASK_ID, "url": HOOK, "token": "the-token"}


@pytest.fixture
def ready(agent):
    agent.card["capabilities"]["pushNotifications"] = True
    for method in ("Create", "Get"):
        agent.says(f"{method}TaskPushNotificationConfig", Answer(result=CONFIG))
    agent.says("DeleteTaskPushNotificationConfig", Answer(result={}))
    page = {"configs": [CONFIG, {**CONFIG, "id": "p-2"}], "nextPageToken": "two"}
    agent.says("ListTaskPushNotificationConfigs", Answer(result=page))
    return agent


def push_config(parley, agent, *words):
    return parley("task", "push-config", *words, "-a", agent.url)


@pytest.mark.slow
def test_a_webhook_is_created_shown_and_deleted(parley, ready):
    """A2ACLI_PUSH_001"""
    flags = ("--id", "p-1", "--token", "the-token", "--auth-scheme", "Bearer")
    ran = push_config(
        parley, ready, "create", TASK_ID, HOOK, *flags, "--auth-credentials", "the-secret"
    )
    assert ran.status == 0, ran.stderr
    assert ran.stdout == (
        f"Task: {TASK_ID}\nPush config: p-1\nURL: {HOOK}\nToken: set, not shown\n"
    )
    assert ready.params("CreateTaskPushNotificationConfig") == {
        **CONFIG,
        "authentication": {"scheme": "Bearer", "credentials": "the-secret"},
    }
    assert push_config(parley, ready, "get", TASK_ID, "p-1").field("URL") == HOOK
    assert ready.params("GetTaskPushNotificationConfig") == {"taskId": TASK_ID, "id": "p-1"}
    assert push_config(parley, ready, "delete", TASK_ID, "p-1").stdout == "Deleted: p-1\n"
    assert ready.params("DeleteTaskPushNotificationConfig") == {"taskId": TASK_ID, "id": "p-1"}


def test_webhooks_are_listed_page_by_page(parley, ready):
    """A2ACLI_PUSH_001"""
    ran = push_config(parley, ready, "list", TASK_ID, "--page-size", "2", "--page-token", "one")
    assert ran.stdout.count("Push config: ") == 2
    assert "next: parley task push-config list" in ran.stderr
    assert f"--page-size 2 --page-token two {TASK_ID}" in ran.stderr
    assert ready.params("ListTaskPushNotificationConfigs") == {
        "taskId": TASK_ID,
        "pageSize": 2,
        "pageToken": "one",
    }


@pytest.mark.slow
def test_json_is_the_protocols_own(parley, ready):
    """A2ACLI_PUSH_001"""
    for words in (("create", TASK_ID, HOOK), ("get", TASK_ID, "p-1")):
        assert push_config(parley, ready, *words, "-o", "json").document == CONFIG
    page = push_config(parley, ready, "list", TASK_ID, "-o", "json").document
    assert [config["id"] for config in page["configs"]] == ["p-1", "p-2"]
    lines = push_config(parley, ready, "list", TASK_ID, "-o", "json", "--stream").lines
    assert [config["id"] for config in lines] == ["p-1", "p-2"]
    assert push_config(parley, ready, "delete", TASK_ID, "p-1", "-o", "json").document == {}


def test_settings_may_stand_before_the_command(parley, ready):
    ran = parley("-a", ready.url, "task", "push-config", "get", TASK_ID, "p-1")
    assert ran.field("Push config") == "p-1"


def test_the_secrets_of_a_webhook_are_not_in_diagnostics(parley, ready):
    """A2ACLI_AUTH_004"""
    flags = ("--token", "the-token", "--auth-scheme", "Basic", "--auth-credentials", "s3cret")
    ran = push_config(parley, ready, "create", TASK_ID, HOOK, *flags, "--debug", "--verbose")
    assert ran.status == 0
    assert "CreateTaskPushNotificationConfig" in ran.stderr
    assert "the-token" not in ran.stdout + ran.stderr
    assert "s3cret" not in ran.stdout + ran.stderr
    ran = push_config(parley, ready, "create", TASK_ID, HOOK, "--auth-credentials", "s3cret")
    assert ran.status == 2


def test_the_secrets_of_a_webhook_may_come_from_the_environment(parley, ready, monkeypatch):
    monkeypatch.setenv("PARLEY_PUSH_CONFIG_TOKEN", "the-token")
    monkeypatch.setenv("PARLEY_PUSH_CONFIG_CREDENTIALS", "s3cret")
    flags = ("--auth-scheme", "Bearer", "--debug", "--verbose")
    ran = push_config(parley, ready, "create", TASK_ID, HOOK, *flags)
    assert ran.status == 0, ran.stderr
    asked = ready.params("CreateTaskPushNotificationConfig")
    assert asked["token"] == "the-token"
    assert asked["authentication"] == {"scheme": "Bearer", "credentials": "s3cret"}
    for secret in ("the-token", "s3cret"):
        assert secret not in ran.stdout + ran.stderr


def test_what_the_card_does_not_declare_is_not_asked_for(parley, agent):
    """A2ACLI_VER_003"""
    ran = push_config(parley, agent, "list", TASK_ID, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "PushNotificationNotSupportedError")
    assert agent.asked == []


@pytest.fixture
def extended(ready):
    extension = {"uri": "urn:parley:push-delivery:v1", "description": "", "required": False}
    ready.card["capabilities"]["extensions"] = [extension]
    return ready


@pytest.mark.slow
def test_what_a_webhook_gets_is_set(parley, extended):
    ready = extended
    result = {"taskId": TASK_ID, "id": "p-1", "events": "all"}
    ready.says("push/options/set", Answer(result=result))
    ran = push_config(parley, ready, "set", TASK_ID, "p-1", "--events", "significant")
    assert (ran.status, ran.stdout) == (0, "Push config: p-1\nEvents: significant\n")
    asked = {"taskId": TASK_ID, "id": "p-1", "events": "significant"}
    assert ready.params("push/options/set") == asked
    ran = push_config(parley, ready, "create", TASK_ID, HOOK, "--events", "all")
    assert ran.status == 0, ran.stderr
    assert ready.params("push/options/set") == {**asked, "events": "all"}
    for words in (("--events", "some"), ()):
        ran = push_config(parley, ready, "set", TASK_ID, "p-1", *words)
        assert ran.status == 2
        assert "all" in ran.stderr


def test_a_history_is_shown(parley, extended):
    ready = extended
    attempts = [
        {"number": 2, "at": "2026-01-31T12:00:01.000Z", "duration": 7, "status": 200,
         "deliveryId": f"{TASK_ID}/p-1/3"},
        {"number": 1, "at": "2026-01-31T12:00:00.000Z", "duration": 3, "status": 503,
         "error": "it answers with \u001b[31mHTTP 503", "next": "2026-01-31T12:00:01.000Z",
         "deliveryId": f"{TASK_ID}/p-1/3"},
    ]  # fmt: skip
    webhook = {"id": "p-1", "state": "active", "note": "waits", "events": "all", "delivered": 3}
    result = {"webhooks": [{**webhook, "attempts": attempts}]}
    ready.says("push/history", Answer(result=result))
    ran = push_config(parley, ready, "history", TASK_ID)
    assert ran.status == 0, ran.stderr
    assert "State: active: waits\nEvents: all\nDelivered: up to event 3\n" in ran.stdout
    assert "Attempt: 2026-01-31 12:00:01 UTC, event 3, 7 ms: HTTP 200\n" in ran.stdout
    assert "3 ms: it answers with" in ran.stdout
    assert "next at 2026-01-31 12:00:01 UTC" in ran.stdout
    assert "\u001b" not in ran.stdout
    assert ready.params("push/history") == {"taskId": TASK_ID}
    ran = push_config(parley, ready, "history", TASK_ID, "p-1", "-o", "json")
    assert ran.document["webhooks"][0]["attempts"][1]["status"] == 503
    assert ready.params("push/history") == {"taskId": TASK_ID, "id": "p-1"}
