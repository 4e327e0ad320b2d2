"""A message to a task that waits: the command shows the turn that processes this message."""

import pytest

from tests.cli.scripted import TASK_ID, Answer, artifact_update, status, status_update, task

OLD = {"artifactId": "old", "name": "draft.md", "parts": [{"text": "Of before."}]}
NEW = {"artifactId": "a-1", "name": "report.md", "parts": [{"text": "One two"}]}
ASKS = task("INPUT_REQUIRED", "When?", artifacts=[OLD])
DONE = task("COMPLETED", artifacts=[OLD, NEW])
PIECES = [artifact_update("One "), artifact_update("two", append=True, last=True)]
END = status_update("COMPLETED")

WAYS = [(), ("--stream",), ("-o", "json"), ("--stream", "-o", "json")]


def check(ran, flags):
    assert ran.status == 0, ran.stderr
    if flags == ("-o", "json"):
        assert ran.document["task"] == DONE
    elif "-o" in flags:
        update = ran.lines[-1]["statusUpdate"]
        assert update["status"]["state"] == "TASK_STATE_COMPLETED"
        pieces = [
            line["artifactUpdate"]["artifact"] for line in ran.lines if "artifactUpdate" in line
        ]
        assert "".join(part["text"] for piece in pieces for part in piece["parts"]) == "One two"
    else:
        assert ran.field("State") == "TASK_STATE_COMPLETED"
        assert ran.stdout.count("One ") == ran.stdout.count("two") == 1
        assert "Of before." not in ran.stdout
        assert "When?" not in ran.stdout
        assert ran.stdout.count("draft.md") == 0
    assert "needs input" not in ran.stderr


def answer(parley, agent, *flags):
    where = ("-a", agent.url, "--poll-interval", "100ms", "--timeout", "20s")
    return parley("send", *where, "--task-id", TASK_ID, "Tuesday", *flags)


@pytest.mark.parametrize("flags", WAYS, ids=" ".join)
@pytest.mark.parametrize(
    "opening",
    [
        [],
        [{"task": ASKS}],
        [{"task": {**ASKS, "status": status("INPUT_REQUIRED")}}],
        [{"task": {**ASKS, "status": status("WORKING")}}],
        [status_update("SUBMITTED")],
    ],
    ids=["artifact", "as it was", "restated", "working", "submitted"],
)
def test_a_turn_is_shown_to_its_end_whatever_its_stream_begins_with(parley, agent, opening, flags):
    agent.says("SendStreamingMessage", Answer(events=[*opening, *PIECES, END]))
    agent.says("GetTask", Answer(result=ASKS), Answer(result=DONE))
    check(answer(parley, agent, *flags), flags)
    assert agent.count("GetTask") == (1 if "--stream" in flags else 2)


@pytest.mark.parametrize("flags", WAYS, ids=" ".join)
def test_the_end_of_a_task_is_shown_that_came_between_two_looks(parley, agent, flags):
    """A2ACLI_SEND_003"""
    agent.card["capabilities"] = {}
    agent.says("SendMessage", Answer(result={"task": task("WORKING")}))
    agent.says("GetTask", Answer(result=task("WORKING")), Answer(result=DONE))
    ran = parley("send", "-a", agent.url, "go", "--poll-interval", "100ms", *flags)
    assert ran.status == 0
    if flags == ("--stream", "-o", "json"):
        assert [next(iter(line)) for line in ran.lines] == [
            "task",
            "artifactUpdate",
            "artifactUpdate",
            "statusUpdate",
        ]
        assert ran.lines[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    elif not flags or "-o" not in flags:
        assert ran.field("State") == "TASK_STATE_COMPLETED"
        assert ran.stdout.count("One ") == ran.stdout.count("two") == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cut", "close"])
@pytest.mark.parametrize("flags", WAYS, ids=" ".join)
def test_a_turn_whose_stream_breaks_is_shown_once_and_to_its_end(parley, agent, end, flags):
    """A2ACLI_TASK_POLL_004"""
    agent.says("SendStreamingMessage", Answer(events=PIECES[:1], end=end))
    agent.says("SubscribeToTask", Answer(events=[], end="cut"))
    begun = {**NEW, "parts": [{"text": "One "}]}
    asks = task("INPUT_REQUIRED", "When?", artifacts=[OLD, begun])
    working = task("WORKING", artifacts=[OLD, begun])
    results = (ASKS, asks, working, working, working, DONE)
    agent.says("GetTask", *(Answer(result=result) for result in results))
    check(answer(parley, agent, *flags), flags)


@pytest.mark.parametrize("flags", WAYS, ids=" ".join)
def test_an_agent_that_shows_no_tasks_is_answered_all_the_same(parley, agent, flags):
    agent.says("SendStreamingMessage", Answer(events=[*PIECES, END]))
    agent.says("GetTask", Answer(error={"code": -32004, "message": "no looking"}))
    ran = answer(parley, agent, *flags)
    assert ran.status == 0
    assert "TASK_STATE_COMPLETED" in ran.stdout.splitlines()[-1] + ran.stdout
    assert ran.stdout.count("two") == 1


def test_a_task_that_is_not_waited_for_shows_nothing_of_before(parley, agent):
    agent.says("SendMessage", Answer(result={"task": task("SUBMITTED", artifacts=[OLD])}))
    agent.says("GetTask", Answer(result=ASKS))
    ran = answer(parley, agent, "--async")
    assert ran.field("State") == "TASK_STATE_SUBMITTED"
    assert "Of before." not in ran.stdout
