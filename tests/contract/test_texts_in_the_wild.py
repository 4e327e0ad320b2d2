"""Exchanges from textbooks and older documents, as people type them in with curl or paste.

Each case says where its text is printed. The server answers a request if it can do so truthfully;
otherwise its error names the correct form. The wording of the cases is ours.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

import parley
from parley import Agent, Part, Retention
from parley.model.cards import AgentExtension
from parley.model.extensions import Extension
from parley.server.app import Settings
from parley.server.run import serving
from tests.contract.agents import strict
from tests.kit.http import Response, ask, connection, data_of

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
LATEST = {**JSON, "A2A-Version": "1.0"}
HELLO = {"role": "user", "parts": [{"kind": "text", "text": "Hello"}]}
WITH_ID = {**HELLO, "messageId": "m-1"}
OLDEST = {"role": "user", "parts": [{"type": "text", "text": "Hello"}]}
"""The first texts called a part's kind ``type``, and gave messages no ids."""
MIXED = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}
"""A message of 1.0, which texts send to methods of other names."""
OF_1_0 = {"role": "ROLE_USER", "parts": [{"text": "Hello"}]}

echo = Agent("Echo", retention=Retention(tasks=None))


@echo.skill(replies="task")
def said(text: str) -> str:
    """Says what was said to it."""
    return f"You said {text}"


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(parley.asgi(echo, store="memory:")) as address:
        yield address


class Typed(NamedTuple):
    """A request as a person types it; ``found`` says where it is printed."""

    found: str
    body: Any
    path: str = "/"
    headers: dict[str, str] = JSON


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "req-1", "method": method, "params": params}


async def post(url: str, typed: Typed) -> Response:
    return await ask(url, "POST", typed.path, json.dumps(typed.body).encode(), typed.headers)


async def a_task(url: str) -> str:
    """Create a task and return its id."""
    made = await post(url, Typed("", rpc("message/send", {"message": WITH_ID})))
    return str(made.json["result"]["id"])


def text_of(response: Response) -> str:
    """The agent's text, from any form of response."""
    answer = response.json
    answer = answer.get("result", answer)
    task = answer.get("task", answer)
    return str(task["artifacts"][0]["parts"][0]["text"])


ANSWERED = {
    "dots for slashes": Typed(
        "blog posts and design notes name the methods with dots",
        rpc("message.send", {"message": WITH_ID}),
    ),
    "dots, and a message of 1.0": Typed(
        "the same, written after 1.0 with its message but the names of before",
        rpc("message.send", {"message": MIXED}),
    ),
    "dots, and names with underscores": Typed(
        "the same, out of a generator that spells members as the proto does",
        rpc("message.send", {"message": {"message_id": "m-1", **OF_1_0}}),
    ),
    "tasks/send": Typed(
        "the specification of version 0.1, and the tutorials that followed it",
        rpc("tasks/send", {"sessionId": "s-1", "message": OLDEST}),
    ),
    "tasks.send": Typed(
        "samples of calendars and the like, after version 0.1",
        rpc("tasks.send", {"message": {"role": "user", "parts": [{"text": "Hello"}]}}),
    ),
    "sendTask": Typed(
        "a book on patterns of agents, and its translations, for an answer at once",
        rpc(
            "sendTask",
            {
                "sessionId": "session-001",
                "message": OLDEST,
                "acceptedOutputModes": ["text/plain"],
                "historyLength": 5,
            },
        ),
    ),
    "the mode text": Typed(
        "cards and requests of the tutorials, which call a mode text",
        rpc("tasks/send", {"message": OLDEST, "acceptedOutputModes": ["text"]}),
    ),
    "the id of a message beside it": Typed(
        "texts that number the request, and not the message",
        rpc("message/send", {"messageId": "m-1", "message": HELLO}),
    ),
    "the id of a message beside it, of 1.0": Typed(
        "the same with the method of 1.0",
        rpc("SendMessage", {"messageId": "m-1", "message": OF_1_0}),
        headers=LATEST,
    ),
    "the id of a message beside it, over HTTP+JSON": Typed(
        "the same as a body", {"messageId": "m-1", "message": HELLO}, "/v1/message:send"
    ),
    "the id of a message beside it, over HTTP+JSON of 1.0": Typed(
        "the same as a body of 1.0",
        {"messageId": "m-1", "message": OF_1_0},
        "/message:send",
        LATEST,
    ),
    "the id of a message beside it, and dots": Typed(
        "the same, of those that name the method with a dot",
        rpc("message.send", {"messageId": "m-1", "message": HELLO}),
    ),
    "the id of a message beside it, at /sendMessage": Typed(
        "the same, at the path of that picture",
        {"messageId": "m-1", "message": HELLO},
        "/sendMessage",
    ),
    "the id of a message beside it, at /sendMessage and in an envelope": Typed(
        "all of it", rpc("message.send", {"message_id": "m-1", "message": HELLO}), "/sendMessage"
    ),
    "/sendMessage": Typed(
        "the picture of a request's life in the documents of A2A, in all their versions",
        {"message": WITH_ID},
        "/sendMessage",
    ),
    "/sendMessage without an id": Typed(
        "servers that were written after that picture", {"message": OLDEST}, "/sendMessage"
    ),
    "/sendMessage with a message of 1.0": Typed(
        "the same, since 1.0", {"message": MIXED}, "/sendMessage"
    ),
    "/sendMessage with an envelope": Typed(
        "the same, by who takes the path for that of JSON-RPC",
        rpc("message/send", {"message": WITH_ID}),
        "/sendMessage",
    ),
    "/sendMessage with an envelope of 1.0": Typed(
        "the same in 1.0, with its header",
        rpc("SendMessage", {"message": MIXED}),
        "/sendMessage",
        LATEST,
    ),
    "/tasks/send with an envelope": Typed(
        "a library of 2025 for Python, which posts JSON-RPC to a path",
        rpc("tasks/send", {"message": OLDEST}),
        "/tasks/send",
    ),
    "/message:send with an envelope": Typed(
        "apps for phones that name the method twice, in the path and in the body",
        rpc("message.send", {"message": WITH_ID}),
        "/message:send",
    ),
}


@pytest.mark.parametrize("what", ANSWERED)
async def test_a_message_as_texts_print_it_is_answered(url: str, what: str) -> None:
    response = await post(url, ANSWERED[what])
    assert (response.status, text_of(response)) == (200, "You said Hello"), response.body
    if "jsonrpc" in ANSWERED[what].body:
        assert response.json["id"] == "req-1"
        assert response.headers["content-type"] == "application/json"
    if '"m-1"' in json.dumps(ANSWERED[what].body):
        answer = response.json.get("result", response.json)
        assert answer.get("task", answer)["history"][0]["messageId"] == "m-1"


STREAMED = {
    "dots for slashes": Typed(
        "design notes, with dots for slashes", rpc("message.stream", {"message": MIXED})
    ),
    "sendTaskSubscribe": Typed(
        "the book that has sendTask", rpc("sendTaskSubscribe", {"message": OLDEST})
    ),
    "/sendMessageStream": Typed(
        "the picture that has /sendMessage", {"message": WITH_ID}, "/sendMessageStream"
    ),
    "/message:stream with an envelope": Typed(
        "apps for phones, as above", rpc("message.stream", {"message": WITH_ID}), "/message:stream"
    ),
}


@pytest.mark.parametrize("what", STREAMED)
async def test_a_stream_as_texts_ask_for_it_is_streamed(url: str, what: str) -> None:
    typed = STREAMED[what]
    async with connection(url) as http:
        await http.request("POST", typed.path, json.dumps(typed.body).encode(), typed.headers)
        status, headers = await http.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        events = [data_of(frame) async for frame in http.frames()]
    assert all(("jsonrpc" in event) == ("jsonrpc" in typed.body) for event in events)
    last = events[-1].get("result", events[-1])
    assert last.get("statusUpdate", last)["status"]["state"] in (
        "completed",
        "TASK_STATE_COMPLETED",
    )


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks.get", {"id": ""}),
        ("tasks.get", {"taskId": ""}),  # tables of methods name the task taskId
        ("tasks/get", {"task_id": ""}),
    ],
)
async def test_a_task_is_got_as_texts_ask_for_it(
    url: str, method: str, params: dict[str, str]
) -> None:
    id = await a_task(url)
    response = await post(url, Typed("", rpc(method, dict.fromkeys(params, id))))
    assert response.json["result"]["id"] == id


async def test_other_methods_are_understood_with_dots_too(url: str) -> None:
    id = await a_task(url)
    refused = await post(url, Typed("notes that list all methods", rpc("tasks.cancel", {"id": id})))
    assert refused.error["code"] == -32002
    listed = await post(url, Typed("the same", rpc("tasks.list", {})))
    assert id in [task["id"] for task in listed.json["result"]["tasks"]]
    over = await post(url, Typed("the same", rpc("tasks.resubscribe", {"id": id})))
    assert over.error["code"] != -32601
    hook = await post(url, Typed("the same", rpc("tasks.pushNotificationConfig.list", {"id": id})))
    assert hook.json["result"] == []


async def test_tasks_without_a_version_are_those_of_0_3(url: str) -> None:
    """Many texts print curl lines for ``GET /tasks`` without a version header."""
    id = await a_task(url)
    response = await ask(url, "GET", f"/tasks/{id}")
    sibling = await ask(url, "GET", f"/v1/tasks/{id}")
    assert (response.status, response.body) == (200, sibling.body)
    assert response.headers["a2a-version"] == sibling.headers["a2a-version"] == "0.3"
    assert response.headers["content-type"] == sibling.headers["content-type"]
    listed = await ask(url, "GET", "/tasks?pageSize=1")
    assert listed.body == (await ask(url, "GET", "/v1/tasks?pageSize=1")).body
    missing = await ask(url, "GET", "/tasks/t-0")
    assert (missing.status, missing.json["code"]) == (404, -32001)


async def test_a_version_that_is_named_still_counts_for_tasks(url: str) -> None:
    id = await a_task(url)
    latest = await ask(url, "GET", f"/tasks/{id}", headers={"A2A-Version": "1.0"})
    assert (latest.status, latest.headers["a2a-version"]) == (200, "1.0")
    older = await ask(url, "GET", f"/tasks/{id}", headers={"A2A-Version": "0.3"})
    assert (older.status, older.headers["a2a-version"]) == (400, "1.0")
    assert "GET /v1/tasks/{id}" in older.body.decode()
    unknown = await ask(url, "GET", "/tasks", headers={"A2A-Version": "7"})
    assert (unknown.status, unknown.headers["a2a-version"]) == (400, "1.0")


async def test_a_server_of_1_0_alone_answers_tasks_without_a_version_as_1_0() -> None:
    settings = Settings(missing_version="1.0")
    async with serving(parley.asgi(echo, store="memory:", settings=settings)) as url:
        listed = await ask(url, "GET", "/tasks")
        assert (listed.status, listed.headers["a2a-version"]) == (200, "1.0")


async def test_the_document_says_what_is_answered_without_a_version(url: str) -> None:
    document = (await ask(url, "GET", "/openapi.json")).json
    for path in ("/tasks", "/tasks/{id}"):
        assert "Without the header A2A-Version" in document["paths"][path]["get"]["description"]
    assert "description" not in document["paths"]["/message:send"]["post"]


CANCELED = [
    ("/tasks", {}, "cancelled"),  # the usual spelling
    ("/tasks", {}, "canceled"),
    ("/tasks", {}, "TASK_STATE_CANCELLED"),  # the proto of 0.3
    ("/tasks", {}, "TASK_STATE_CANCELED"),
    ("/v1/tasks", {}, "cancelled"),
    ("/v1/tasks", {"A2A-Version": "0.3"}, "TASK_STATE_CANCELLED"),
    ("/tasks", {"A2A-Version": "1.0"}, "cancelled"),
    ("/tasks", {"A2A-Version": "1.0"}, "canceled"),
    ("/tasks", {"A2A-Version": "1.0"}, "TASK_STATE_CANCELLED"),
]


@pytest.fixture(scope="module")
async def waiting() -> AsyncIterator[tuple[str, str]]:
    """A server with two tasks, and the id of the second task, which is canceled."""
    agent = Agent("Asker", retention=Retention(tasks=None))

    @agent.skill
    async def ask_back(turn: Any) -> str:
        return str(await turn.ask("Which?"))

    async with serving(parley.asgi(agent, store="memory:")) as address:
        ids = [await a_task(address) for _ in range(2)]
        await post(address, Typed("", rpc("tasks/cancel", {"id": ids[1]})))
        yield address, ids[1]


@pytest.mark.parametrize(("path", "headers", "state"), CANCELED)
async def test_canceled_tasks_are_found_however_the_word_is_spelled(
    waiting: tuple[str, str], path: str, headers: dict[str, str], state: str
) -> None:
    url, id = waiting
    response = await ask(url, "GET", f"{path}?status={state}", headers=headers)
    assert [task["id"] for task in response.json["tasks"]] == [id]


@pytest.mark.parametrize(
    ("method", "headers"), [("tasks/list", JSON), ("tasks.list", JSON), ("ListTasks", LATEST)]
)
async def test_canceled_tasks_are_found_over_json_rpc_too(
    waiting: tuple[str, str], method: str, headers: dict[str, str]
) -> None:
    url, id = waiting
    for state in ("cancelled", "canceled", "TASK_STATE_CANCELLED"):
        asked = Typed("", rpc(method, {"status": state}), headers=headers)
        tasks = (await post(url, asked)).json["result"]["tasks"]
        assert [task["id"] for task in tasks] == [id]


REFUSED = {
    "a method of 1.0 without the header": (
        Typed("texts on 1.0 that leave the header out", rpc("SendMessage", {"message": MIXED})),
        -32009,
        "send the header A2A-Version: 1.0",
    ),
    "a task whose id the caller chose": (
        Typed(
            "the texts that have tasks/send and sendTask",
            rpc("sendTask", {"id": "task-001", "message": OLDEST}),
        ),
        -32001,
        "the agent chooses the ids of tasks, so leave it out to begin one",
    ),
    "an older method in 1.0": (
        Typed("mixtures of both", rpc("message.send", {"message": MIXED}), headers=LATEST),
        -32601,
        "what it has is SendMessage",
    ),
    "a method in another case": (
        Typed("tables of functions of an SDK", rpc("sendMessage", {"message": WITH_ID})),
        -32601,
        "what it has is message/send",
    ),
    "a method of 1.0 in another case, with the header": (
        Typed("the same", rpc("getTask", {"id": "t-1"}), headers=LATEST),
        -32601,
        "what it has is GetTask",
    ),
    "no id anywhere": (
        Typed("shortened examples", rpc("message/send", {"message": HELLO})),
        -32602,
        "message.messageId: required, but missing",
    ),
    "no role": (
        Typed("shortened examples", rpc("message.send", {"message": {"parts": HELLO["parts"]}})),
        -32602,
        "message.role: required, but missing",
    ),
    "a role of 1.0 for a method of 0.3": (
        Typed("mixtures", rpc("message/send", {"message": MIXED})),
        -32602,
        "message.role: expected one of user, agent",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_answered_truthfully_is_told_what_is_right(
    url: str, what: str
) -> None:
    typed, code, words = REFUSED[what]
    response = await post(url, typed)
    assert (response.error["code"], response.json["id"]) == (code, "req-1")
    assert words in response.error["message"]


async def test_a_path_of_1_0_without_the_header_stays_refused(url: str) -> None:
    response = await post(url, Typed("texts on 1.0", {"message": MIXED}, "/message:send"))
    assert response.status == 400
    assert "send the header A2A-Version: 1.0" in response.json["error"]["message"]


async def test_the_path_of_the_picture_is_named_in_1_0(url: str) -> None:
    asked = Typed("the picture, with the header", {"message": MIXED}, "/sendMessage", LATEST)
    response = await post(url, asked)
    assert response.status == 400
    assert "in version 1.0, which the request names, it is POST /message:send" in str(response.json)


async def test_a_notification_to_a_path_gets_no_answer(url: str) -> None:
    body = {"jsonrpc": "2.0", "method": "message/send", "params": {"message": WITH_ID}}
    response = await post(url, Typed("an envelope without an id", body, "/sendMessage"))
    assert (response.status, response.body) == (204, b"")


async def test_an_envelope_that_is_refused_is_refused_in_one(url: str) -> None:
    asked = Typed("an envelope to a path", rpc("message/send", {"message": {}}), "/sendMessage")
    response = await post(url, asked)
    assert (response.status, response.error["code"], response.json["id"]) == (200, -32602, "req-1")


@pytest.mark.parametrize("path", ["/sendMessage", "/tasks/send", "/v1/message:send"])
async def test_an_envelope_is_refused_in_one_whatever_it_is_refused_for(path: str) -> None:
    async with serving(parley.asgi(strict)) as address:
        call = rpc("message/send", {"message": WITH_ID})
        response = await post(address, Typed("an envelope to a path", call, path))
    assert (response.status, response.error["code"], response.json["id"]) == (200, -32008, "req-1")


# Modes: the cards of books and tutorials have "text" instead of a media type

TEXT = {"kind": "text", "text": "Hello"}
MARKDOWN = {"text": "*Hello*", "mediaType": "text/markdown"}
A_FILE = {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "image/png"}}
UNTYPED_FILE = {"kind": "file", "file": {"bytes": "aGk="}}
SOME_DATA = {"kind": "data", "data": {"n": 1}}
OTHER_DATA = {"data": {"n": 1}, "mediaType": "application/vnd.example+json"}
TAKEN = [
    (["text"], [TEXT, MARKDOWN, UNTYPED_FILE], [A_FILE, SOME_DATA, OTHER_DATA]),
    (["file"], [A_FILE, UNTYPED_FILE], [TEXT, MARKDOWN, SOME_DATA]),
    (["data"], [SOME_DATA, OTHER_DATA, UNTYPED_FILE], [TEXT, A_FILE]),
    (["text", "file"], [TEXT, A_FILE], [SOME_DATA]),
    (["text", "data", "file"], [TEXT, MARKDOWN, A_FILE, UNTYPED_FILE, SOME_DATA, OTHER_DATA], []),
    (["text/plain"], [TEXT], [MARKDOWN, A_FILE, SOME_DATA]),
]


@pytest.mark.parametrize(("modes", "taken", "refused"), TAKEN)
async def test_modes_of_older_cards_take_all_parts_of_their_kind(
    modes: list[str], taken: list[dict[str, Any]], refused: list[dict[str, Any]]
) -> None:
    agent = Agent(
        "Reader", input_modes=modes, output_modes=["text"], retention=Retention(tasks=None)
    )

    @agent.skill(replies="task")
    def read() -> str:
        return "read"

    async with serving(parley.asgi(agent, store="memory:")) as url:
        for part in (*taken, *refused):
            is_latest = "kind" not in part
            role = "ROLE_USER" if is_latest else "user"
            params = {"message": {"messageId": "m-1", "role": role, "parts": [part]}}
            method = "SendMessage" if is_latest else "message/send"
            headers = LATEST if is_latest else JSON
            response = await post(url, Typed("", rpc(method, params), headers=headers))
            if part in taken:
                assert "result" in response.json, (modes, part, response.body)
            else:
                assert response.error["code"] == -32005, (modes, part)
                assert f"accepts {', '.join(modes)}" in response.error["message"]


async def test_modes_of_older_cards_stand_on_the_card_as_they_are_written() -> None:
    agent = Agent("Reader", input_modes=["text", "data"], output_modes=["text"])

    @agent.skill(input_modes=["file"], output_modes=["data", "image/png"])
    def look() -> str:
        return ""

    async with serving(parley.asgi(agent, store="memory:")) as url:
        for headers in ({}, {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}):
            card = (await ask(url, "GET", "/.well-known/agent-card.json", headers=headers)).json
            assert card["defaultInputModes"] == ["text", "data"]
            assert card["defaultOutputModes"] == ["text"]
            assert card["skills"][0]["inputModes"] == ["file"]
            assert card["skills"][0]["outputModes"] == ["data", "image/png"]


def test_what_is_neither_a_media_type_nor_a_kind_of_part_is_no_mode() -> None:
    for mode in ("texts", "image", "audio", ""):
        with pytest.raises(ValueError, match="nor one of text, file, data"):
            Agent("Reader", input_modes=[mode])


ACCEPTED = [
    (["text"], ["text"], "text"),
    (["text"], ["text/plain"], "text"),
    (["text/plain"], ["text"], "text"),
    (["data"], ["data"], "data"),
    (["data"], ["text"], "text"),
    (["data"], ["application/json"], "data"),
    (["data"], ["file", "text"], "text"),
    (["file"], ["file"], "file"),
    (["image/png"], ["file"], "file"),
    (["file"], ["image/png"], "file"),
    (["text"], ["data"], None),
    (["image/png"], ["text"], None),
]


@pytest.mark.parametrize(("offered", "accepted", "form"), ACCEPTED)
async def test_modes_that_older_callers_accept_are_kinds_of_parts(
    offered: list[str], accepted: list[str], form: str | None
) -> None:
    agent = Agent("Speaker", output_modes=offered, retention=Retention(tasks=None))

    @agent.skill(replies="task")
    def speak() -> Any:
        if "text" in offered[0]:
            return "Hi"
        return {"n": 1} if "data" in offered[0] else Part(raw=b"x", media_type="image/png")

    async with serving(parley.asgi(agent, store="memory:")) as url:
        configuration = {"acceptedOutputModes": accepted}
        params = {"message": WITH_ID, "configuration": configuration}
        response = await post(url, Typed("", rpc("message/send", params)))
        if form is None:
            assert response.error["code"] == -32005
        else:
            part = response.json["result"]["artifacts"][0]["parts"][0]
            assert part["kind"] == form


# Extensions of data alone: "Agents shouldn't mark data-only extensions as required"

PLACE = "https://example.com/ext/place/v1"


def warnings_of(caplog: pytest.LogCaptureFixture, extension: Any) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="parley.agent"):
        caplog.clear()
        agent = Agent("Somewhere", extensions=[extension])
    assert PLACE in [each.uri for each in agent.extensions]
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("is_declared", [True, False])
def test_data_that_is_required_is_warned_about_when_the_agent_is_made(
    caplog: pytest.LogCaptureFixture, is_declared: bool
) -> None:
    class Place(Extension):
        uri = PLACE

    given = AgentExtension(uri=PLACE, required=True) if is_declared else Place(required=True)
    [words] = warnings_of(caplog, given)
    assert PLACE in words
    assert "the specification advises against it" in words


def test_what_does_something_may_be_required_and_data_may_be_declared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Acting(Extension):
        uri = PLACE

        def send(self, event: Any) -> Any:
            return event

    class Reading(Extension):
        uri = PLACE
        data = dict[str, int]

    for given in (
        Acting(required=True),
        Reading(required=True),
        Acting(),
        AgentExtension(uri=PLACE, params={"city": "Bern"}),
    ):
        assert warnings_of(caplog, given) == []
