"""``parley task authorize``: a task gets the credential that it asks for, and nobody sees it."""

import io
import sys

import pytest

from tests.cli.scripted import TASK_ID, Answer, task

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


def test_no_is_an_answer(parley, agent):
    agent.says("GetTask", asking(f"{agent.url}/callbacks/authorize/t"))
    assert parley("task", "authorize", TASK_ID, "-a", agent.url, "--refuse").status == 0
    assert agent.params("callback") == {"error": "access_denied"}


def test_it_goes_nowhere_else(parley, agent, typed):
    agent.says("GetTask", asking("https://evil.example/t"))
    typed(TOKEN)
    ran = parley("task", "authorize", TASK_ID, "-a", agent.url)
    assert ran.status != 0
    assert "https://evil.example" in ran.stderr
    assert TOKEN not in ran.stderr


def test_a_page_to_log_in_at_is_shown(parley, agent):
    agent.says("GetTask", asking(authorizationUrl="https://id.example.com/authorize?x=1"))
    ran = parley("task", "authorize", TASK_ID, "-a", agent.url)
    assert ran.status == 0
    assert "https://id.example.com/authorize?x=1" in ran.stderr
    ran = parley("task", "get", TASK_ID, "-a", agent.url)
    assert "log in at https://id.example.com/authorize?x=1" in ran.stderr


def test_a_task_that_asks_for_nothing_and_an_empty_pipe_are_refused(parley, agent, typed):
    agent.says("GetTask", Answer(result=task("WORKING")))
    ran = parley("task", "authorize", TASK_ID, "-a", agent.url)
    assert ran.status == 2
    assert "asks for no credential" in ran.stderr
    agent.says("GetTask", asking(f"{agent.url}/t"))
    typed("")
    assert parley("task", "authorize", TASK_ID, "-a", agent.url).status == 2


def test_the_next_command_is_said(parley, agent):
    agent.says("GetTask", asking(f"{agent.url}/t"))
    ran = parley("task", "get", TASK_ID, "-a", agent.url)
    assert f"parley task authorize -a {agent.url} {TASK_ID}" in ran.stdout
