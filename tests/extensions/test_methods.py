"""Methods that extensions add, and the negotiation of extensions, over the HTTP bindings."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley import Agent, AgentExtension, CallContext, Caller, Task, TaskState, Turn
from parley.extensions.declared import (
    SKILL_SCHEMAS,
    CompositionPicture,
    FileTransfer,
    SkillSchema,
    schemas_on,
)
from parley.extensions.message_timestamps import MessageTimestamps
from parley.extensions.task_search import (
    SEARCH,
    TASK_SEARCH,
    SearchTasksRequest,
    SearchTasksResponse,
    TaskSearch,
    search,
)
from parley.extensions.usage import USAGE, Spent, UsageRequest, report, spent_on
from parley.model.errors import (
    ExtensionSupportRequiredError,
    InvalidParamsError,
    UnauthenticatedError,
)
from parley.model.extensions import Extension, method
from parley.model.operations import ListTasksRequest, ListTasksResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import A2AService
from parley.model.struct import A2AStruct
from parley.model.tasks import TaskStatus
from parley.server.run import serving
from tests.kit.http import ask, call, post

pytestmark = pytest.mark.anyio

BINDINGS = ["JSONRPC", "HTTP+JSON"]


def diary(*extensions: Any) -> Agent:
    agent = Agent("Diary", extensions=[TaskSearch(), *extensions])

    @agent.skill(replies="task")
    async def write(turn: Turn) -> str:
        if "ask" in turn.text:
            await turn.ask("What then?")
        return f"Noted: {turn.text}"

    return agent


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_method_is_called_like_those_of_the_specification(serve: Any, binding: str) -> None:
    async with serve(diary(), extensions=[TaskSearch()], binding=binding) as agent:
        sent = await agent.send("I saw a heron")
        await agent.send("I saw a fox")
        found = await agent.call(SEARCH, SearchTasksRequest(text="HERON saw"))
        assert isinstance(found, SearchTasksResponse)
        assert [task.id for task in found.tasks] == [sent.id]
        assert (found.tasks[0].artifacts, found.next_page_token) == ((), "")
        every = await agent.call(SEARCH, SearchTasksRequest(page_size=0))  # the "none" of proto3
        assert len(every.tasks) == 2
        with pytest.raises(InvalidParamsError) as raised:
            await agent.call(SEARCH, SearchTasksRequest(page_size=101))
        assert raised.value.violations[0].field == "pageSize"


async def test_a_method_needs_the_version_that_it_is_of() -> None:
    headers = {"Content-Type": "application/json", "A2A-Extensions": TASK_SEARCH}
    async with serving(parley.asgi(diary())) as url:
        unsaid = await ask(url, "POST", "/", call("tasks/search", {}), headers)
        assert unsaid.error["code"] == -32009
        old = await ask(
            url, "POST", "/", call("tasks/search", {}), {**headers, "A2A-Version": "0.3"}
        )
        assert old.error["code"] == -32601


def hello() -> str:
    return "hi"


async def test_methods_ask_for_the_same_credentials() -> None:
    def known(scope: Any) -> Caller:
        if b"authorization" not in dict(scope["headers"]):
            raise UnauthenticatedError("who are you?")
        return Caller(id="ada", authenticated=True)

    headers = {"A2A-Extensions": TASK_SEARCH}
    async with serving(parley.asgi(diary(), caller=known)) as url:
        response = await post(url, call("tasks/search", {}), headers)
        assert (response.status, response.error["code"]) == (401, -32010)
        response = await post(
            url, call("tasks/search", {}), {**headers, "Authorization": "Bearer x"}
        )
        assert response.json["result"] == {"tasks": [], "nextPageToken": ""}


class Query(A2AStruct, frozen=True, kw_only=True):
    word: str = ""


class Count(A2AStruct, frozen=True, kw_only=True):
    letters: int


async def count(service: A2AService, request: Query, context: CallContext) -> Count:
    if request.word == "oops":
        raise RuntimeError("secret")
    if request.word == "none":
        return None  # type: ignore[return-value]
    return Count(letters=len(request.word))


class Counter(Extension):
    uri = "urn:example:counter:v1"
    depends_on = (TASK_SEARCH,)
    methods = (method(uri, "letters/count", Query, Count, count, path="/letters", verb="GET"),)


(COUNT,) = Counter.methods


# -- negotiation -------------------------------------------------------------------------------


async def in_force(url: str, asked: str) -> set[str]:
    response = await post(url, call(), {"A2A-Extensions": asked} if asked else {})
    assert "result" in response.json, response.json
    named = response.headers.get("a2a-extensions", "")
    return {uri.strip() for uri in named.split(",") if uri}


async def test_an_extension_is_in_force_only_with_what_it_depends_on() -> None:
    async with serving(parley.asgi(diary(Counter()))) as url:
        assert await in_force(url, Counter.uri) == set()
        assert await in_force(url, f"{Counter.uri},{TASK_SEARCH}") == {Counter.uri, TASK_SEARCH}
        response = await post(url, call("letters/count", {}), {"A2A-Extensions": Counter.uri})
        assert response.error["code"] == -32008
        assert TASK_SEARCH in response.error["message"]


@pytest.mark.parametrize("wrong", ["urn:a,urn:b", "", "urn:a b", "urn:é"])
def test_a_uri_can_stand_in_a_header(wrong: str) -> None:
    with pytest.raises(ValueError, match="URI"):
        Agent("Wrong", extensions=[AgentExtension(uri=wrong)])


# -- the client --------------------------------------------------------------------------------


async def test_the_client_names_a_required_extension_before_it_sends(serve: Any) -> None:
    agent = diary(Counter(required=True))
    async with serve(agent, extensions=[TaskSearch()]) as remote:
        with pytest.raises(ExtensionSupportRequiredError, match=Counter.uri):
            await remote.send("Hi")
        with pytest.raises(ExtensionSupportRequiredError, match=Counter.uri):
            async for _ in remote.stream("Hi"):
                pass
    async with serve(agent, extensions=[Counter()]) as remote:
        assert (await remote.send("Hi")).task
    async with serve(agent, extensions=[Counter.uri, TASK_SEARCH]) as remote:
        assert (await remote.send("Hi")).task


async def test_the_client_does_by_itself_what_it_knows(serve: Any) -> None:
    async with serve(diary(MessageTimestamps(required=True))) as remote:
        task = await remote.send("Hi")
        assert MessageTimestamps.of(task.history[0]) is not None
        assert task.history[0].extensions == (MessageTimestamps.uri,)


async def test_a_clients_extension_is_at_work_only_where_the_agent_has_it(serve: Any) -> None:
    async with serve(diary(), extensions=[MessageTimestamps()]) as remote:
        task = await remote.send("Hi")
        assert task.history[0].metadata is None


# -- searching ---------------------------------------------------------------------------------


async def test_a_search_combines_its_filters_and_pages(serve: Any) -> None:
    async with serve(diary(), extensions=[TaskSearch()]) as agent:
        made = [
            await agent.send(f"entry {n}", message_metadata={"n": n % 2}, context_id=f"c{n % 3}")
            for n in range(7)
        ]
        asking = await agent.send("ask entry")

        async def ids(**filters: Any) -> list[str]:
            found: list[str] = []
            token = ""
            while True:
                page = await agent.call(SEARCH, SearchTasksRequest(**filters, page_token=token))
                assert len(page.tasks) <= filters.get("page_size", 20)
                found += [task.id for task in page.tasks]
                token = page.next_page_token
                if not token:
                    return found

        newest_first = [task.id for task in reversed(made)]
        assert await ids() == [asking.id, *newest_first]
        assert await ids(page_size=2, metadata={"n": 1}) == [made[n].id for n in (5, 3, 1)]
        assert await ids(metadata={"n": True}) == []
        assert await ids(context_id="c1", text="entry") == [made[n].id for n in (4, 1)]
        assert await ids(states=[TaskState.INPUT_REQUIRED]) == [asking.id]
        assert await ids(states=[TaskState.COMPLETED, TaskState.FAILED]) == newest_first
        moment = made[3].status.timestamp
        before = await ids(status_timestamp_before=moment)
        assert made[3].id in before
        assert asking.id not in before
        after = await ids(status_timestamp_after=moment)
        assert set(before) | set(after) == {task.id for task in [*made, asking]}
        found = await agent.call(
            SEARCH, SearchTasksRequest(text="noted 6", include_artifacts=True, history_length=0)
        )
        assert found.tasks[0].artifacts == made[6].artifacts
        assert found.tasks[0].history == ()


async def test_one_call_looks_at_a_bounded_number_of_tasks(monkeypatch: Any, serve: Any) -> None:
    monkeypatch.setattr("parley.extensions.task_search.MOST_TASKS", 3)
    async with serve(diary(), extensions=[TaskSearch()]) as agent:
        first = await agent.send("needle")
        for _ in range(4):
            await agent.send("hay")
        page = await agent.call(SEARCH, SearchTasksRequest(text="needle", page_size=3))
        assert (page.tasks, bool(page.next_page_token)) == ((), True)
        page = await agent.call(
            SEARCH, SearchTasksRequest(text="needle", page_token=page.next_page_token)
        )
        assert [task.id for task in page.tasks] == [first.id]


class Listing:
    """A service that lists prepared pages of tasks, and records its requests."""

    def __init__(self, *pages: str) -> None:
        self.pages = pages
        self.asked: list[ListTasksRequest] = []

    async def list_tasks(self, request: ListTasksRequest, context: Any) -> ListTasksResponse:
        self.asked.append(request)
        number, status = len(self.asked), TaskStatus(state=TaskState.COMPLETED)
        found = []
        for text in self.pages[number - 1].split():
            made = Artifact(artifact_id="a", name=text, parts=(Part(text="x"),))
            found.append(Task(id=text, context_id="c", status=status, artifacts=(made,)))
        token = str(number) if number < len(self.pages) else ""
        return ListTasksResponse(
            tasks=tuple(found), next_page_token=token, page_size=0, total_size=0
        )

    async def found(self, **filters: Any) -> tuple[str, str]:
        service: Any = self
        page = await search(service, SearchTasksRequest(**filters), CallContext())
        return " ".join(task.id for task in page.tasks), page.next_page_token


@pytest.mark.parametrize(
    ("pages", "size", "expected"),
    [
        (["Hit miss", "miss", "Hit"], 2, ("Hit Hit", "")),  # all pages are full
        (["Hit miss", "miss"], 3, ("Hit", "1")),  # a match on a cut page
        (["miss", "miss Hit"], 3, ("Hit", "")),  # no match on a cut page
        (["Hit", "miss"], 1, ("Hit", "1")),
    ],
)
async def test_a_search_ends_with_its_page_or_with_a_cut_page(
    pages: Any, size: int, expected: Any
) -> None:
    assert await Listing(*pages).found(text="hit " * 32, page_size=size) == expected


@pytest.mark.parametrize(("limit", "most"), [("LISTS", 2), ("TASKS", 2), ("CHARACTERS", 10)])
async def test_a_search_ends_at_each_of_its_limits(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    for more, token in ((0, "2"), (1, "")):
        monkeypatch.setattr(f"parley.extensions.task_search.MOST_{limit}", most + more)
        assert await Listing("miss", "miss", "miss").found(text="hit") == ("", token)
    with pytest.raises(InvalidParamsError, match="at most 32 words"):
        await Listing("").found(text="x " * 33)


@pytest.mark.parametrize(
    ("filters", "reads"),
    [
        ({"metadata": {"n": 1}}, True),
        ({"states": [*TaskState][1:3]}, False),
        ({"include_artifacts": True}, True),
    ],
)
async def test_a_search_reads_content_only_for_its_filters_or_its_result(
    filters: Any, reads: bool
) -> None:
    await (pages := Listing("")).found(**filters)
    [asked] = pages.asked
    assert (asked.include_artifacts, asked.status) == (reads, TaskState.UNSPECIFIED)


# -- usage and declarations --------------------------------------------------------------------


async def test_the_days_of_a_usage_report_have_a_limit() -> None:
    async def usage_of(context: Any, days: int) -> int:
        return days

    service: Any = Listing()
    service.usage_of = usage_of
    for days in (1, 400):
        assert await report(service, UsageRequest(days=days), CallContext()) == days
    with pytest.raises(InvalidParamsError, match="between 1 and 400"):
        await report(service, UsageRequest(days=401), CallContext())


def test_the_costs_in_a_task_are_summed() -> None:
    parts, metadata = (Part(text="x"),), {USAGE: {"tokens": 2**54, "cost": 0.5, "calls": 2}}
    said = Message(message_id="m", role=Role.AGENT, parts=parts, metadata=metadata)
    made = Artifact(artifact_id="a", parts=parts, metadata={USAGE: {"tokens": 7}})
    status = TaskStatus(state=TaskState.COMPLETED, message=said)
    task = Task(id="t", context_id="c", status=status, artifacts=(made, made), metadata=metadata)
    assert spent_on(task) == Spent(calls=4, tokens=14, cost=1.0)


def test_the_card_has_each_declaration() -> None:
    skills = {"good": {"input": {"type": "string"}}, "bad": 7}
    schemas = AgentExtension(uri=SKILL_SCHEMAS, params={"skills": skills})
    picture = CompositionPicture("flowchart", "<svg/>")
    files = FileTransfer(upload_url="http://a", max_bytes=9, inline_bytes=8)
    agent = Agent("Declares", extensions=["urn:own", schemas, picture, files])
    agent.skill(hello)
    card = agent.card("http://a")
    assert schemas_on(card) == {"good": SkillSchema(input={"type": "string"})}
    declared = {each.uri: each.params for each in card.capabilities.extensions}
    assert declared[picture.uri] == {"mermaid": picture.mermaid}
    assert declared[files.uri] == {"uploadUrl": "http://a", "maxBytes": 9, "inlineBytes": 8}
