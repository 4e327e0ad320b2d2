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


def test_what_the_card_does_not_declare_is_not_asked_for(parley, agent):
    """A2ACLI_VER_003"""
    ran = push_config(parley, agent, "list", TASK_ID, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "PushNotificationNotSupportedError")
    assert agent.asked == []
