"""Lists of tasks: their order, their pages, their filters."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.rules.conftest import only
from tests.rules.wire import Wire

pytestmark = pytest.mark.anyio

LISTING = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0"), ("HTTP+JSON", "0.3")]


async def listed(wire: Wire, context: str, **more: Any) -> dict[str, Any]:
    """The answer to a question for the tasks of a context."""
    answer = await wire.ask("ListTasks", {"contextId": context, **more})
    assert answer.result is not None, answer
    result: dict[str, Any] = answer.result
    return result


def ids(page: dict[str, Any]) -> list[str]:
    return [task["id"] for task in page.get("tasks", [])]


@pytest.fixture
async def three(wire: Wire) -> tuple[str, list[dict[str, Any]]]:
    """A context with three tasks, in the order in which they were made."""
    context = uuid4().hex
    return context, [
        await wire.task(f"{w} please", contextId=context) for w in ("ask", "ask", "work")
    ]


@only(*LISTING)
async def test_rule_10_tasks_are_listed_by_their_last_update_the_latest_first(wire, three):
    context, (first, second, third) = three
    assert ids(await listed(wire, context)) == [third["id"], second["id"], first["id"]]
    await wire.send("large", taskId=first["id"])
    assert ids(await listed(wire, context)) == [first["id"], third["id"], second["id"]]


@only(*LISTING)
async def test_rule_10_a_walk_shows_no_task_twice_and_none_that_moved_or_came_meanwhile(
    wire, three
):
    context, (first, second, third) = three
    page = await listed(wire, context, pageSize=1)
    assert ids(page) == [third["id"]]
    await wire.send("large", taskId=second["id"])  # moves to where the walk has been
    await wire.task("work please", contextId=context)  # and this one is new
    rest = []
    while token := page.get("nextPageToken"):
        page = await listed(wire, context, pageSize=1, pageToken=token)
        assert page["totalSize"] <= 3
        rest += ids(page)
    assert rest == [first["id"]]


@only(*LISTING)
async def test_rule_10_the_number_of_all_tasks_is_that_before_paging(wire, three):
    context, _ = three
    page = await listed(wire, context, pageSize=2)
    assert (len(page["tasks"]), page["totalSize"], page["pageSize"]) == (2, 3, 2)
    rest = await listed(wire, context, pageSize=2, pageToken=page["nextPageToken"])
    assert (len(rest["tasks"]), rest["totalSize"]) == (1, 3)


@only(("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3"))
async def test_rule_10_all_four_members_are_there_though_there_are_no_tasks(wire):
    page = await listed(wire, "nothing here")
    assert page == {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}


@only(*LISTING)
async def test_rule_10_a_page_size_of_zero_is_the_default_as_proto3_clients_send_it(wire, three):
    context, tasks = three
    page = await listed(wire, context, pageSize=0)
    assert (len(page["tasks"]), page["pageSize"]) == (len(tasks), 50)


@only(*LISTING)
async def test_rule_10_no_history_length_is_all_and_zero_is_none(wire, three):
    context, (first, *_) = three
    done = await wire.task("large", taskId=first["id"])
    lengths = []
    for more in ({}, {"historyLength": 0}, {"historyLength": 2}):
        page = await listed(wire, context, pageSize=1, **more)
        assert ids(page) == [first["id"]]
        lengths.append(len(page["tasks"][0].get("history", [])))
    assert lengths == [len(done["history"]), 0, 2]


@only(*LISTING)
async def test_rule_29_a_state_that_is_unspecified_filters_nothing(wire, three):
    context, _ = three
    unspecified = "unknown" if wire.is_old else "TASK_STATE_UNSPECIFIED"
    working = "input-required" if wire.is_old else "TASK_STATE_INPUT_REQUIRED"
    assert len(ids(await listed(wire, context, status=unspecified))) == 3
    assert len(ids(await listed(wire, context, status=working))) == 2


@only(*LISTING)
async def test_rule_38_tasks_since_a_moment_are_those_of_that_moment_too(wire, three):
    context, tasks = three
    latest = tasks[-1]
    moment = latest["status"]["timestamp"]
    assert latest["id"] in ids(await listed(wire, context, statusTimestampAfter=moment))
    later = moment.replace("2", "3", 1)  # in a thousand years
    assert ids(await listed(wire, context, statusTimestampAfter=later)) == []


@only(("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3"))
async def test_rule_38_a_moment_may_be_written_in_lower_case(wire, three):
    """As RFC 3339 has it (§5.6): ``t`` and ``z``."""
    context, tasks = three
    moment = tasks[-1]["status"]["timestamp"].lower()
    assert "t" in moment
    assert tasks[-1]["id"] in ids(await listed(wire, context, statusTimestampAfter=moment))
