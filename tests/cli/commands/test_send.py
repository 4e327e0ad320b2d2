"""``parley send``: the message sent, the waiting, and the output."""

import io
import sys

import pytest

from parley.client.bindings import http
from tests.cli.scripted import (
    CONTEXT_ID,
    TASK_ID,
    Answer,
    artifact_update,
    message,
    status_update,
    task,
)

DONE = Answer(result=task(text="Done."))
WORKED = Answer(
    events=[
        {"task": task("WORKING")},
        artifact_update("One "),
        artifact_update("two", append=True, last=True),
        status_update("COMPLETED", "Done."),
    ]
)


def test_a_message_starts_an_interaction_and_its_reply_is_shown(parley, agent):
    """A2ACLI_SEND_001"""
    agent.says("SendStreamingMessage", Answer(events=[{"message": message("It is noon.")}]))
    ran = parley("send", "-a", agent.url, "What time is it?")
    assert ran.status == 0
    assert ran.field("Text") == "It is noon."
    sent = agent.params("SendStreamingMessage")["message"]
    assert sent["parts"] == [{"text": "What time is it?"}]
    assert sent["role"] == "ROLE_USER"
    assert sent["messageId"]


@pytest.mark.slow
def test_it_waits_for_the_task_to_end_unless_told_not_to(parley, agent):
    """A2ACLI_SEND_002"""
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", DONE)
    assert parley("send", "-a", agent.url, "go").field("State") == "TASK_STATE_COMPLETED"

    agent.says("SendMessage", Answer(result={"task": task("SUBMITTED")}))
    for flag in ("--async", "--return-immediately", "--no-wait"):
        ran = parley("send", "-a", agent.url, "go", flag)
        assert ran.status == 0
        assert ran.field("State") == "TASK_STATE_SUBMITTED"
        assert agent.params("SendMessage")["configuration"]["returnImmediately"] is True


def test_wait_overrides_a_configured_async(parley, agent, monkeypatch):
    monkeypatch.setenv("A2ACLI_ASYNC", "true")
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", DONE)
    assert parley("send", "-a", agent.url, "go", "--wait").field("State") == "TASK_STATE_COMPLETED"


def test_a_stream_is_shown_as_it_comes(parley, agent):
    """A2ACLI_SEND_003"""
    agent.says("SendStreamingMessage", WORKED)
    ran = parley("send", "-a", agent.url, "go", "--stream")
    assert ran.status == 0
    assert "Text:\nOne two\n\n" in ran.stdout
    assert ran.field("State") == "TASK_STATE_COMPLETED"
    assert agent.count("GetTask") == 0


def test_streaming_an_agent_that_does_not_stream_ends_all_the_same(parley, agent):
    """A2ACLI_SEND_003"""
    agent.card["capabilities"] = {}
    agent.says("SendMessage", Answer(result={"task": task("WORKING")}))
    agent.says("GetTask", Answer(result=task("WORKING")), DONE)
    ran = parley("send", "-a", agent.url, "go", "--stream", "-o", "json", "--timeout", "20s")
    assert ran.status == 0
    assert ran.lines[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "does not stream" in ran.stderr


def test_a_card_that_promises_streams_in_vain_does_no_harm(parley, agent):
    """A2ACLI_SEND_003"""
    agent.says("SendMessage", Answer(result={"message": message("All the same.")}))
    for flags in ((), ("--stream",)):
        ran = parley("send", "-a", agent.url, "go", *flags)
        assert ran.status == 0
        assert ran.field("Text") == "All the same."


def test_a_direct_message_ends_a_stream_cleanly(parley, agent):
    """A2ACLI_SEND_003"""
    agent.says("SendStreamingMessage", Answer(events=[{"message": message("Hi.")}]))
    ran = parley("send", "-a", agent.url, "hello", "--stream", "-o", "json")
    assert ran.status == 0
    assert ran.lines == [{"message": message("Hi.")}]


def test_every_part_of_every_artifact_is_rendered(parley, agent):
    """A2ACLI_SEND_004"""
    parts = [
        {"text": "# Title\n\nBody"},
        {"data": {"n": 1}},
        {"raw": "AAEC", "filename": "boat.png", "mediaType": "image/png"},
        {"url": "https://host/x.pdf", "mediaType": "application/pdf"},
    ]
    artifacts = [{"artifactId": "a-1", "name": "mixed", "parts": parts}]
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", Answer(result=task(artifacts=artifacts)))
    ran = parley("send", "-a", agent.url, "go")
    assert "Text:\n# Title\n \nBody\n\n" in ran.stdout
    assert 'Data:\n{\n  "n": 1\n}\n\n' in ran.stdout
    assert "File: boat.png (image/png, 3 bytes)\n" in ran.stdout
    assert "File: unnamed (application/pdf, https://host/x.pdf)\n" in ran.stdout


def test_a_media_type_belongs_to_the_part_flag_before_it(parley, agent, tmp_path):
    """A2ACLI_SEND_005"""
    (tmp_path / "scan.bin").write_bytes(b"%PDF")
    (tmp_path / "photo.jpg").write_bytes(b"\xff")
    agent.says("SendStreamingMessage", Answer(events=[{"message": message()}]))
    flags = ("--file", "scan.bin", "--media-type", "application/pdf", "--file", "photo.jpg")
    assert parley("send", "-a", agent.url, *flags).status == 0
    first, second = agent.params("SendStreamingMessage")["message"]["parts"]
    assert first["mediaType"] == "application/pdf"
    assert second["mediaType"] == "image/jpeg"

    ran = parley("send", "-a", agent.url, "--media-type", "text/plain", "--text", "a")
    assert ran.status == 2
    assert "must follow a part" in ran.stderr


def test_parts_are_sent_in_the_order_in_which_they_were_written(
    parley, agent, tmp_path, monkeypatch
):
    """A2ACLI_SEND_006"""
    (tmp_path / "one.json").write_text('{"big": 12345678901234567890}')
    (tmp_path / "notes.txt").write_bytes(b"notes")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'["from stdin"]')))
    agent.says("SendStreamingMessage", Answer(events=[{"message": message()}]))
    ran = parley(
        "send", "-a", agent.url, "--text", "a", "--data", "one.json", "--file", "notes.txt",
        "first", "--data=-", "--text=b", "--file", "https://host/pic.png",
    )  # fmt: skip
    assert ran.status == 0
    parts = agent.params("SendStreamingMessage")["message"]["parts"]
    assert [next(iter(part)) for part in parts] == [
        "text", "text", "data", "raw", "data", "text", "url",
    ]  # fmt: skip
    assert [part["text"] for part in parts if "text" in part] == ["first", "a", "b"]
    assert parts[2]["data"] == {"big": 12345678901234567890}
    assert parts[4]["data"] == ["from stdin"]


def test_a_context_is_continued_with_a_new_task(parley, agent):
    """A2ACLI_INTERACT_001"""
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", DONE)
    assert parley("send", "-a", agent.url, "more", "--context-id", CONTEXT_ID).status == 0
    sent = agent.params("SendStreamingMessage")["message"]
    assert sent["contextId"] == CONTEXT_ID
    assert "taskId" not in sent


def test_a_task_is_continued_by_its_id_with_or_without_its_context(parley, agent):
    """A2ACLI_INTERACT_002"""
    # The first event of the stream is the task with its old question.
    opened = {"task": task("INPUT_REQUIRED", "When?")}
    agent.says("SendStreamingMessage", Answer(events=[opened, status_update("COMPLETED")]))
    agent.says("GetTask", DONE)
    for flags in (("--task-id", TASK_ID), ("--task-id", TASK_ID, "--context-id", CONTEXT_ID)):
        ran = parley("send", "-a", agent.url, "Tuesday", *flags)
        assert ran.status == 0
        assert ran.field("State") == "TASK_STATE_COMPLETED"
        sent = agent.params("SendStreamingMessage")["message"]
        assert sent["taskId"] == TASK_ID
        assert sent.get("contextId", "") == (CONTEXT_ID if len(flags) > 2 else "")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (-32001, "TaskNotFoundError"),
        (-32004, "UnsupportedOperationError"),
        (-32602, "InvalidParamsError"),
    ],
)
def test_a_refused_task_id_fails_and_starts_nothing(parley, agent, code, name):
    """A2ACLI_INTERACT_002"""
    refusal = Answer(error={"code": code, "message": "not this one"})
    agent.says("SendStreamingMessage", refusal)
    agent.says("SendMessage", refusal)
    ran = parley("send", "-a", agent.url, "x", "--task-id", "gone", "-o", "json")
    assert ran.status == 1
    assert ran.error["code"] == name
    assert ran.error["a2aCode"] == code
    assert "--debug" in ran.error["hint"]
    sent = [asked.params["message"] for asked in agent.asked if asked.method != "GetTask"]
    assert sent
    assert all(message["taskId"] == "gone" for message in sent)


def test_no_server_assigned_id_is_ever_invented(parley, agent):
    """A2ACLI_INTERACT_003"""
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", DONE)
    parley("send", "-a", agent.url, "go")
    sent = agent.params("SendStreamingMessage")["message"]
    assert sent.keys() == {"messageId", "role", "parts"}


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("INPUT_REQUIRED", f"--task-id {TASK_ID} '<reply>'"),
        ("COMPLETED", f"--context-id {CONTEXT_ID} '<message>'"),
    ],
)
def test_ids_and_state_are_reported_with_the_command_to_go_on(parley, agent, state, command):
    """A2ACLI_INTERACT_004"""
    agent.says("SendStreamingMessage", Answer(events=[{"task": task(state)}]))
    agent.says("GetTask", Answer(result=task(state)))
    ran = parley("send", "-a", agent.url, "go")
    assert f"Task: {TASK_ID}\nContext: {CONTEXT_ID}\nState: TASK_STATE_{state}\n" in ran.stdout
    assert ran.field("Next") == f"parley send -a {agent.url} {command}"


def test_nothing_is_remembered_between_two_runs(parley, agent, tmp_path):
    """A2ACLI_INTERACT_005"""
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", DONE)
    for _ in range(2):
        parley("send", "-a", agent.url, "go")
        assert "contextId" not in agent.params("SendStreamingMessage")["message"]
    assert list(tmp_path.rglob("*")) == []
    assert parley("send", "-a", agent.url, "go", "--continue").status == 2


def test_the_ids_of_a_task_that_is_not_waited_for_are_reported(parley, agent):
    """A2ACLI_OUT_006"""
    agent.says("SendMessage", Answer(result={"task": task("SUBMITTED")}))
    ran = parley("send", "-a", agent.url, "go", "--async", "-o", "json")
    assert ran.document["task"]["id"] == TASK_ID
    assert ran.document["task"]["contextId"] == CONTEXT_ID
    ran = parley("send", "-a", agent.url, "go", "--async")
    assert f"Task: {TASK_ID}\nContext: {CONTEXT_ID}\n" in ran.stdout
    assert ran.field("Next") == f"parley task get --wait -a {agent.url} {TASK_ID}"


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("flags", [(), ("--async",), ("--stream",)])
def test_a_skill_is_named_by_its_id(parley, agent, streams, flags):
    agent.card["capabilities"] = {"streaming": streams}
    agent.card["skills"] = [{"id": "fare", "name": "Fare", "description": "Fares", "tags": ["t"]}]
    agent.says("SendStreamingMessage", Answer(events=[{"message": message()}]))
    agent.says("SendMessage", Answer(result={"message": message()}))
    ran = parley("send", "-a", agent.url, "go", "--skill", "fare", *flags)
    assert ran.status == 0, ran.stderr
    assert agent.asked[-1].params["metadata"] == {"skill": "fare"}
    asked = len(agent.asked)
    ran = parley("send", "-a", agent.url, "go", "--skill", "fair", *flags)
    assert ran.status != 0
    assert "no skill 'fair'; it has fare" in ran.stderr
    ran = parley("send", "-a", agent.url, "go", "--skill", "fare", "--metadata", '{"skill":"x"}')
    assert ran.status == 2
    assert "name different skills" in ran.stderr
    assert len(agent.asked) == asked


MOOD, NEEDED = "https://example.com/ext/mood/v1", "urn:example:needed:v1"


def declaring(agent, *required: str) -> None:
    agent.card["capabilities"] = {
        "streaming": True,
        "extensions": [{"uri": uri, "required": uri in required} for uri in (MOOD, NEEDED)],
    }


@pytest.mark.parametrize("flags", [("--extension", f"{MOOD},{NEEDED}"), ()], ids=["flag", "env"])
def test_an_extension_is_activated_in_every_request(parley, agent, monkeypatch, flags):
    """A2ACLI_VER_002"""
    declaring(agent)
    if not flags:
        monkeypatch.setenv("A2ACLI_EXTENSION", f"{MOOD},{NEEDED}")
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", DONE)
    ran = parley("send", "-a", agent.url, "go", *flags)
    assert ran.status == 0, ran.stderr
    assert len(agent.asked) == 2
    for asked in agent.asked:
        assert set(asked.headers["a2a-extensions"].split(", ")) == {MOOD, NEEDED}
    asked = parley("task", "get", TASK_ID, "-a", agent.url, "--extension", MOOD)
    assert asked.status == 0
    assert agent.asked[-1].headers["a2a-extensions"] == MOOD


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("urn:example:other:v1", f"urn:example:other:v1; it declares: {MOOD}, {NEEDED}"),
        ("mood", "no installed package has an extension named 'mood'"),
    ],
    ids=["not declared", "not installed"],
)
def test_an_extension_that_would_do_nothing_is_refused(parley, agent, given, said):
    declaring(agent)
    ran = parley("send", "-a", agent.url, "go", "--extension", given)
    assert ran.status == 2
    assert said in ran.stderr
    assert not agent.asked


def test_who_needs_an_extension_is_told_how_to_activate_it(parley, agent):
    """A2ACLI_VER_002"""
    declaring(agent, NEEDED)
    ran = parley("send", "-a", agent.url, "go")
    assert ran.status == 1
    assert f"hint: activate what the agent requires: --extension {NEEDED}" in ran.stderr
    agent.says("SendStreamingMessage", WORKED)
    agent.says("GetTask", Answer(result=task("INPUT_REQUIRED", "Which?")))
    ran = parley("send", "-a", agent.url, "go", "--extension", NEEDED)
    assert ran.field("Next").startswith(f"parley send -a {agent.url} --extension {NEEDED} ")


def test_a_task_too_large_to_be_kept_is_streamed_whole_and_else_asked_for(
    parley, agent, monkeypatch
):
    monkeypatch.setattr(http, "MAX_RESPONSE", 10_000)
    pieces = [artifact_update("x" * 1000, append=n > 0) for n in range(20)]
    events = [{"task": task("WORKING")}, *pieces, status_update("COMPLETED", "Done.")]
    agent.says("SendStreamingMessage", Answer(events=events))
    ran = parley("send", "go", "-a", agent.url, "--stream")
    assert ran.status == 0
    assert ran.stdout.count("x") >= 20_000
    assert ran.field("Status") == "Done."
    assert agent.count("GetTask") == 0
    agent.says("GetTask", Answer(result=task(text="Done.")))
    assert parley("send", "go", "-a", agent.url).field("Status") == "Done."
    agent.says("GetTask", Answer(error={"code": -32603, "message": "it broke"}))
    ran = parley("send", "go", "-a", agent.url)
    assert (ran.status, ran.stdout) == (1, "")  # not shown as an empty task
    assert "it broke" in ran.stderr
