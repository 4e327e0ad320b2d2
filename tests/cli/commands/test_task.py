"""``parley task``: get, wait, follow, cancel and list."""

import base64

import pytest

from tests.cli.scripted import CONTEXT_ID, TASK_ID, Answer, artifact_update, status_update, task

ARTIFACTS = [{"artifactId": "a-1", "name": "report", "parts": [{"text": "all of it"}]}]
DONE = Answer(result=task(text="Done.", artifacts=ARTIFACTS))
QUICK = ("--poll-interval", "20ms")


def working(times=1):
    return [Answer(result=task("WORKING"))] * times


def test_a_task_is_shown_with_its_artifacts_and_its_history_on_request(parley, agent):
    """A2ACLI_TASK_GET_001"""
    history = [{"messageId": "h-1", "role": "ROLE_USER", "parts": [{"text": "before"}]}]
    agent.says("GetTask", Answer(result=task(artifacts=ARTIFACTS, history=history)))
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "--history", "2")
    assert ran.status == 0
    assert agent.params("GetTask") == {"id": TASK_ID, "historyLength": 2}
    assert ran.field("Task") == TASK_ID
    assert ran.field("Context") == CONTEXT_ID
    assert ran.field("State") == "TASK_STATE_COMPLETED"
    assert "Artifact: a-1\nName: report\nText: all of it\n" in ran.stdout
    assert "History: h-1\nRole: ROLE_USER\nText: before\n" in ran.stdout
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "-o", "json")
    assert ran.document == task(artifacts=ARTIFACTS, history=history)


def test_a_task_is_canceled_and_the_state_that_follows_is_reported(parley, agent):
    """A2ACLI_TASK_CANCEL_001"""
    agent.says("CancelTask", Answer(result=task("CANCELED")))
    for _ in range(2):  # idempotent: the second call gives the same output
        ran = parley("task", "cancel", TASK_ID, "-a", agent.url, "--metadata", '{"why": "no"}')
        assert ran.status == 0
        assert ran.field("State") == "TASK_STATE_CANCELED"
    assert agent.params("CancelTask") == {"id": TASK_ID, "metadata": {"why": "no"}}

    agent.says("CancelTask", Answer(error={"code": -32002, "message": "it has ended"}))
    ran = parley("task", "cancel", TASK_ID, "-a", agent.url, "-o", "json")
    assert ran.status == 1
    assert ran.error["code"] == "TaskNotCancelableError"
    assert f"parley task get -a {agent.url} {TASK_ID}" in ran.error["hint"]


@pytest.mark.slow
def test_a_task_is_looked_at_once_or_until_it_ends(parley, agent):
    """A2ACLI_TASK_POLL_001"""
    agent.says("GetTask", *working())
    ran = parley("task", "get", TASK_ID, "-a", agent.url)
    assert ran.field("State") == "TASK_STATE_WORKING"
    assert agent.count("GetTask") == 1

    for flag in ("--wait", "--watch"):
        agent.says("GetTask", *working(2), DONE)
        ran = parley("task", "get", TASK_ID, "-a", agent.url, flag, *QUICK)
        assert ran.status == 0
        assert ran.field("State") == "TASK_STATE_COMPLETED"


@pytest.mark.slow
def test_waiting_keeps_to_the_interval_and_to_the_limit(parley, agent):
    """A2ACLI_TASK_POLL_002"""
    agent.says("GetTask", *working())
    flags = ("--wait", "--poll-interval", "100ms", "--timeout", "450ms")
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "-o", "json", *flags)
    assert ran.status == 5
    assert ran.error["code"] == "A2ACLI_ERR_TIMEOUT"
    assert f"parley task get --wait -a {agent.url} {TASK_ID}" in ran.error["hint"]
    assert 1 < agent.count("GetTask") < 8


@pytest.mark.parametrize("state", ["INPUT_REQUIRED", "AUTH_REQUIRED"])
def test_waiting_stops_where_the_task_waits_for_its_caller(parley, agent, state):
    """A2ACLI_TASK_POLL_003"""
    agent.says("GetTask", *working(), Answer(result=task(state, "What now?")))
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "--wait", *QUICK)
    assert ran.status == 0
    assert ran.field("State") == f"TASK_STATE_{state}"
    assert ran.field("Next") == f"parley send -a {agent.url} --task-id {TASK_ID} '<reply>'"


@pytest.mark.slow
def test_an_unspecified_state_is_reported_as_it_is_and_waited_through(parley, agent):
    """A2ACLI_TASK_POLL_003"""
    unknown = Answer(result=task("UNSPECIFIED"))
    agent.says("GetTask", unknown)
    ran = parley("task", "get", TASK_ID, "-a", agent.url)
    assert ran.field("State") == "TASK_STATE_UNSPECIFIED"
    agent.says("GetTask", unknown, unknown, DONE)
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "--wait", *QUICK)
    assert ran.field("State") == "TASK_STATE_COMPLETED"
    agent.says("GetTask", unknown)
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "--wait", *QUICK, "--timeout", "200ms")
    assert ran.status == 5


@pytest.mark.parametrize("end", ["close", "cut"])
@pytest.mark.parametrize("flags", [(), ("--stream",)])
def test_a_wait_whose_stream_breaks_goes_on_by_polling(parley, agent, end, flags):
    """A2ACLI_TASK_POLL_004"""
    begun = [{"task": task("WORKING")}, artifact_update("all ")]
    agent.says("SendStreamingMessage", Answer(events=begun, end=end))
    agent.says("SubscribeToTask", Answer(status=503))
    agent.says("GetTask", *working(2), DONE)
    ran = parley("send", "-a", agent.url, "go", "--timeout", "20s", *QUICK, *flags)
    assert ran.status == 0
    assert ran.field("State") == "TASK_STATE_COMPLETED"
    assert "all of it" in ran.stdout
    assert agent.count("SendStreamingMessage") == 1


@pytest.mark.slow
def test_an_agent_that_is_away_for_a_while_is_waited_for(parley, agent):
    """A2ACLI_TASK_POLL_004"""
    agent.says("SendStreamingMessage", Answer(events=[{"task": task("WORKING")}], end="cut"))
    agent.says("SubscribeToTask", Answer(status=503))
    agent.says("GetTask", *[Answer(status=503)] * 4, DONE)
    ran = parley("send", "-a", agent.url, "go", "--timeout", "20s", *QUICK)
    assert ran.field("State") == "TASK_STATE_COMPLETED"
    agent.says("GetTask", Answer(status=503))
    ran = parley("send", "-a", agent.url, "go", "--timeout", "20s", *QUICK, "-o", "json")
    assert ran.status == 1
    ran = parley("task", "get", TASK_ID, "-a", agent.url, "--wait", "-o", "json")
    assert ran.error["a2aCode"] == 503


@pytest.mark.parametrize(
    ("properties", "reply"),
    [
        ({"start": {}, "nights": {}}, """'{"start": ..., "nights": ...}'"""),
        ({f"p{n}": {} for n in range(9)}, None),
        ({"$(rm -rf ~)": {}}, "'<reply as JSON>'"),
        ({}, "'<reply>'"),
    ],
)
def test_a_question_with_a_schema_is_answered_with_data(parley, agent, properties, reply):
    waiting = task("INPUT_REQUIRED", "When?")
    schema = {"data": {"schema": {"type": "object", "properties": properties}}}
    waiting["status"]["message"]["parts"].append(schema)
    agent.says("GetTask", Answer(result=waiting))
    ran = parley("task", "get", TASK_ID, "-a", agent.url)
    names = ", ".join(f'"p{n}": ...' for n in range(6))
    reply = reply or f"'{{{names}, ...}}'"
    assert ran.field("Next") == f"parley send -a {agent.url} --task-id {TASK_ID} {reply}"


@pytest.mark.slow
def test_tasks_are_listed_by_page_and_filtered(parley, agent):
    """A2ACLI_TASK_LIST_001"""
    page = {"tasks": [task(), task("WORKING")], "nextPageToken": "p2", "pageSize": 2}
    agent.says("ListTasks", Answer(result={**page, "totalSize": 5}))
    ran = parley(
        "task", "list", "-a", agent.url, "--context-id", CONTEXT_ID, "--state", "input-required",
        "--page-size", "2", "--page-token", "p1", "--artifacts", "--history", "0",
    )  # fmt: skip
    assert ran.status == 0
    assert agent.params("ListTasks") == {
        "contextId": CONTEXT_ID,
        "status": "TASK_STATE_INPUT_REQUIRED",
        "pageSize": 2,
        "pageToken": "p1",
        "includeArtifacts": True,
        "historyLength": 0,
    }
    assert ran.stdout.count(f"Task: {TASK_ID}\nContext: {CONTEXT_ID}\n") == 2
    assert ran.field("Total") == "5"
    assert ran.field("Next page") == "p2"
    assert ran.field("Next") == (
        f"parley task list -a {agent.url} --context-id {CONTEXT_ID} --state input_required "
        "--page-size 2 --artifacts --page-token p2"
    )

    ran = parley("task", "list", "-a", agent.url, "-o", "json")
    assert ran.document == {**page, "totalSize": 5}
    ran = parley("task", "list", "-a", agent.url, "-o", "json", "--stream")
    assert ran.lines == page["tasks"]
    ran = parley("task", "list", "-a", agent.url, "--state", "busy")
    assert ran.status == 2
    assert "input-required" in ran.stderr


@pytest.mark.slow
def test_a_state_is_filtered_by_however_it_is_spelled(parley, agent):
    for state in ("cancelled", "canceled", "TASK_STATE_CANCELLED"):
        agent.says("ListTasks", Answer(result={"tasks": [], "totalSize": 0}))
        assert parley("task", "list", "-a", agent.url, "--state", state).status == 0
        assert agent.params("ListTasks")["status"] == "TASK_STATE_CANCELED"


def test_a_task_is_followed_until_it_ends(parley, agent):
    """A2ACLI_TASK_SUBSCRIBE_001"""
    events = [{"task": task("WORKING")}, artifact_update("x", last=True), status_update("FAILED")]
    agent.says("SubscribeToTask", Answer(events=events))
    agent.says("GetTask", Answer(result=task("FAILED")))
    ran = parley("task", "subscribe", TASK_ID, "-a", agent.url, "-o", "json", "--stream")
    assert ran.status == 0
    assert [next(iter(line)) for line in ran.lines] == ["task", "artifactUpdate", "statusUpdate"]
    ran = parley("task", "subscribe", TASK_ID, "-a", agent.url, "-o", "json")
    assert ran.document == task("FAILED")


def test_following_a_task_that_has_ended_is_the_protocols_own_error(parley, agent):
    agent.says("SubscribeToTask", Answer(error={"code": -32004, "message": "it has ended"}))
    ran = parley("task", "subscribe", TASK_ID, "-a", agent.url, "-o", "json")
    assert ran.status == 1
    assert ran.error["code"] == "UnsupportedOperationError"
    assert f"parley task get -a {agent.url} {TASK_ID}" in ran.error["hint"]


def test_following_is_refused_where_the_card_declares_no_streams(parley, agent):
    """A2ACLI_VER_003"""
    agent.card["capabilities"] = {}
    ran = parley("task", "subscribe", TASK_ID, "-a", agent.url, "-o", "json")
    assert ran.error["code"] == "UnsupportedOperationError"
    assert agent.asked == []


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


SAVED = [
    {
        "artifactId": "a-1",
        "name": "report",
        "parts": [{"text": "One "}, {"text": "two"}, {"data": {"n": 1}}],
    },
    {
        "artifactId": "../../a-2",
        "parts": [
            {"raw": _base64(b"boat"), "filename": "../../boat.png", "mediaType": "image/png"},
            {"raw": _base64(b"other"), "filename": "/etc/boat.png", "mediaType": "image/png"},
            {"text": "<p>", "mediaType": "text/html"},
            {"text": "", "filename": ".hidden"},
        ],
    },
]
FILES = {
    "report.txt": b"One two",
    "report.json": b'{"n":1}',
    "boat.png": b"boat",
    "boat (2).png": b"other",
    "a-2.html": b"<p>",
    "hidden.txt": b"",
}


def _in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_artifacts_of_a_task_are_saved_under_safe_names(parley, agent, tmp_path):
    """A2ACLI_DOWNLOAD_001"""
    agent.says("GetTask", Answer(result=task(artifacts=SAVED)))
    ran = parley("task", "download", TASK_ID, "new/out", "-a", agent.url)
    assert ran.status == 0, ran.stderr
    out = tmp_path / "new" / "out"
    assert _in(out) == FILES
    lines = ran.stdout.replace("\\", "/").splitlines()
    assert lines == [f"File: new/out/{name}" for name in FILES]
    ran = parley("task", "download", TASK_ID, "new/out", "-a", agent.url, "-o", "json")
    assert len(ran.document["files"]) == len(FILES)
    assert len(_in(out)) == 2 * len(FILES)
    assert {name: _in(out)[name] for name in FILES} == FILES


def test_files_are_replaced_only_if_that_is_asked_for(parley, agent, tmp_path):
    agent.says("GetTask", Answer(result=task(artifacts=SAVED)))
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "boat.png").symlink_to(secret)
    (out / "report.txt").write_bytes(b"old")
    assert parley("task", "download", TASK_ID, "out", "-a", agent.url).status == 0
    assert (out / "report.txt").read_bytes() == b"old"
    ran = parley("task", "download", TASK_ID, "out", "--overwrite", "-a", agent.url)
    assert ran.status == 0
    assert {name: _in(out)[name] for name in FILES} == FILES
    assert secret.read_bytes() == b"mine"
