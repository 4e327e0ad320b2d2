"""The output contract: stdout and stderr, formats, errors and exit statuses."""

import json
import re

import pytest

from parley.cli.output.failures import EXIT_STATUSES
from tests.cli.scripted import (
    CONTEXT_ID,
    TASK_ID,
    Answer,
    artifact_update,
    message,
    status_update,
    task,
)

WORKED = Answer(
    events=[{"task": task("WORKING")}, artifact_update("x"), status_update("COMPLETED", "Done.")]
)
IDS = f"Task: {TASK_ID}\nContext: {CONTEXT_ID}\nState: TASK_STATE_COMPLETED\n"


@pytest.fixture
def working_agent(agent):
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", Answer(result=task(text="Done.")))
    agent.says("CancelTask", Answer(result=task()))
    return agent


@pytest.mark.slow
def test_every_response_about_a_task_names_it_and_stays_apart_from_diagnostics(
    parley, working_agent
):
    """A2ACLI_OUT_001"""
    url = working_agent.url
    for words in (("send", "go"), ("send", "go", "--stream"), ("task", "get", TASK_ID)):
        ran = parley(*words, "-a", url, "--debug")
        assert IDS in ran.stdout
        assert "debug: " in ran.stderr
        assert "debug: " not in ran.stdout
        ran = parley(*words, "-a", url, "-o", "json", "--debug")
        last = json.loads(ran.stdout if "--stream" not in words else ran.stdout.splitlines()[-1])
        shown = json.dumps(last)
        assert TASK_ID in shown
        assert CONTEXT_ID in shown
        assert "TASK_STATE_COMPLETED" in shown


def test_json_is_one_document_the_terminal_object(parley, working_agent, monkeypatch):
    """A2ACLI_OUT_002"""
    monkeypatch.setenv("A2ACLI_STREAM", "true")  # has no effect here
    ran = parley("send", "go", "-a", working_agent.url, "-o", "json")
    assert ran.document == {"task": task(text="Done.")}
    ran = parley("task", "get", TASK_ID, "-a", working_agent.url, "-o", "json")
    assert ran.document == task(text="Done.")
    working_agent.says("SendStreamingMessage", Answer(events=[{"message": message()}]))
    ran = parley("send", "go", "-a", working_agent.url, "-o", "json")
    assert ran.document == {"message": message()}


def test_streamed_json_is_one_object_a_line_and_the_last_is_terminal(parley, working_agent):
    """A2ACLI_OUT_003"""
    ran = parley("send", "go", "-a", working_agent.url, "-o", "json", "--stream")
    assert ran.status == 0
    assert [next(iter(line)) for line in ran.lines] == ["task", "artifactUpdate", "statusUpdate"]
    assert ran.lines[-1] == status_update("COMPLETED", "Done.")
    ran = parley("task", "get", TASK_ID, "-a", working_agent.url, "-o", "json", "--stream")
    assert ran.lines == [task(text="Done.")]
    ran = parley("card", "get", "-a", working_agent.url, "-o", "json", "--stream")
    assert ran.lines == [working_agent.card]


def test_an_error_that_ends_a_stream_is_its_last_line(parley, agent):
    """A2ACLI_OUT_003"""
    error = {"error": {"code": -32603, "message": "it broke"}}
    agent.says("SendStreamingMessage", Answer(events=[{"task": task("WORKING")}, error]))
    ran = parley("send", "go", "-a", agent.url, "-o", "json", "--stream")
    assert ran.status == 1
    assert len(ran.lines) == 2
    assert ran.lines[-1]["error"]["code"] == "InternalError"


def test_errors_carry_the_protocols_name_or_a_code_of_the_tool(parley, agent):
    """A2ACLI_OUT_004"""
    agent.says("GetTask", Answer(error={"code": -32001, "message": "no such task"}))
    ran = parley("task", "get", "gone", "-a", agent.url, "-o", "json")
    assert ran.document == {
        "error": {
            "code": "TaskNotFoundError",
            "message": "no such task",
            "hint": ran.error["hint"],
            "a2aCode": -32001,
        }
    }
    assert f"parley task list -a {agent.url}" in ran.error["hint"]
    ran = parley("task", "get", "gone", "-a", agent.url)
    assert ran.stdout == ""
    assert "error: no such task [TaskNotFoundError (-32001)]\nhint: " in ran.stderr

    ran = parley("task", "get", "-o", "json")
    assert ran.error["code"] == "A2ACLI_ERR_USAGE"
    assert ran.error["a2aCode"] is None
    assert ran.error["hint"]


def test_text_is_fields_and_blocks_without_control_sequences(parley, agent, monkeypatch):
    """A2ACLI_OUT_005"""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    parts = [{"text": "\x1b[31mred\x1b[0m\n\nFake: field"}, {"data": {"a": [1, 2]}}]
    artifacts = [{"artifactId": "a-1", "name": "n\x1b]0;title\x07", "parts": parts}]
    agent.says("GetTask", Answer(result=task(artifacts=artifacts)))
    ran = parley("task", "get", TASK_ID, "-a", agent.url)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", ran.stdout)
    lines = ran.stdout.split("\n")
    assert lines.pop() == ""
    while lines:
        line = lines.pop(0)
        if re.fullmatch(r"[A-Z][A-Za-z ]*:", line):
            while lines.pop(0):
                pass
        else:
            assert re.fullmatch(r"[A-Z][A-Za-z ]*: .+", line), line
            assert not line.startswith("Fake")
    help_text = parley("--help").stdout + parley("send", "--help").stdout
    assert "\x1b" not in help_text


@pytest.mark.slow
def test_the_required_and_reserved_exit_statuses_agree_with_the_error(parley, agent):
    """A2ACLI_EXIT_001"""
    agent.says("GetTask", Answer(result=task()))
    assert parley("task", "get", TASK_ID, "-a", agent.url).status == 0
    wrong = {
        ("send",): "A2ACLI_ERR_USAGE",
        ("nonsense",): "A2ACLI_ERR_USAGE",
        ("send", "x", "--nonsense"): "A2ACLI_ERR_USAGE",
        ("card", "get", "-a", "/no/such/card.json"): "A2ACLI_ERR_CARD_NOT_FOUND",
        ("card", "get", "-a", f"{agent.url}/nobody.json"): "A2ACLI_ERR_CARD_INVALID",
        ("card", "get", "-a", "http://127.0.0.1:1"): "A2ACLI_ERR_UNREACHABLE",
    }
    whole, agent.card = agent.card, b"not JSON"
    for words, code in wrong.items():
        ran = parley(*words, "-o", "json")
        assert ran.error["code"] == code
        assert ran.status == EXIT_STATUSES[code]
    agent.card, agent.card_status = whole, 404
    ran = parley("card", "get", "-a", agent.url, "-o", "json")
    assert (ran.status, ran.error["code"]) == (3, "A2ACLI_ERR_CARD_NOT_FOUND")


@pytest.mark.parametrize("state", ["FAILED", "REJECTED", "INPUT_REQUIRED", "AUTH_REQUIRED"])
def test_the_exit_status_does_not_tell_how_the_task_went(parley, agent, state):
    """A2ACLI_EXIT_002"""
    settled = {"task": task(state, "because")}
    agent.says("SendStreamingMessage", Answer(events=[settled]))
    agent.says("SendMessage", Answer(result=settled))
    agent.says("GetTask", Answer(result=task(state, "because")))
    for flags in ((), ("--stream",), ("--async",), ("-o", "json")):
        ran = parley("send", "go", "-a", agent.url, *flags)
        assert ran.status == 0
        assert f"TASK_STATE_{state}" in ran.stdout
        assert "warning: " in ran.stderr
        is_question = state.endswith("REQUIRED") and "json" not in flags
        assert ran.stderr.count("because") == (0 if is_question else 1)
        assert ran.stdout.count("because") == 1
