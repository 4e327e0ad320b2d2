"""``parley task push-config``."""

import pytest

from tests.cli.scripted import TASK_ID, Answer

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
