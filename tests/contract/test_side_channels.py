"""An id of another owner's data gets the same response as an unknown id."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest

import parley
from parley import (
    Agent,
    CardDetails,
    Message,
    Part,
    Retention,
    Rights,
    Role,
    TaskPushNotificationConfig,
    TaskState,
    Turn,
)
from parley.client.remote_agent import RemoteAgent
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import (
    A2AError,
    PermissionDeniedError,
    TaskNotFoundError,
    UnauthenticatedError,
)
from parley.model.operations import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import Caller
from parley.security import Access, Bearer, anonymous, claim
from tests.contract.conftest import Serve, Speech, reach
from tests.contract.test_errors import refused, saying

pytestmark = pytest.mark.anyio


def member(id: str, org: str, *scopes: str) -> Caller:
    return Caller(id=id, claims={"org": org}, scopes=frozenset(scopes))


TOKENS = {
    "ada": member("ada", "acme", "write"),
    "bob": member("bob", "acme"),
    "eve": member("eve", "evil", "write"),
    "lone": Caller(id="lone"),
    "barred": member("barred", "acme", "write"),
}
token = Bearer(TOKENS.get)
HOOK = TaskPushNotificationConfig(id="hook", url="https://hooks.example.com/a2a")


async def policy(access: Access) -> bool:
    return access.caller.id != "barred"


vault = Agent(
    "Vault",
    security=token | anonymous,
    rights=Rights(
        owner=claim("org"), policy=policy, operations={"UploadFile": token.with_scopes("write")}
    ),
    retention=Retention(history=True),
    card=CardDetails(extended_card={"description": "for members"}),
    extensions=[TaskSearch()],
)


@vault.skill(replies="task")
async def keep(turn: Turn) -> str:
    """Asks, and says who it speaks with and what was said in the conversation before."""
    before = await turn.recall("said", "")
    await turn.remember("said", before + turn.text)
    await turn.ask(f"{turn.caller.id}, after {before!r}, {len(await turn.history())} messages?")
    return f"{turn.caller.id}: kept"


@vault.skill(replies="task", security=token.with_scopes("write"))
async def write(turn: Turn) -> str:
    """Asks before it writes."""
    await turn.ask("Really?")
    return "written"


@vault.skill(replies="task")
async def refer(turn: Turn) -> str:
    """Says what it finds of other tasks and files."""
    tasks, artifacts = await turn.references(), await turn.referenced_artifacts()
    found = [f"{len(tasks)} tasks, {len(artifacts)} artifacts"]
    for part in turn.files:
        try:
            found.append((await turn.file(part).read()).decode())
        except Exception as error:
            found.append(type(error).__name__)
    return "; ".join(found)


@pytest.fixture(scope="session")
async def addresses(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    files = tmp_path_factory.mktemp("files")
    settings = parley.Settings(max_uploads=1000)
    return await serve(partial(parley.asgi, vault), caller=None, files=files, settings=settings)


@asynccontextmanager
async def member_of(
    addresses: Sequence[str], speech: Speech, name: str, **options: Any
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {name}"} if name else {}
    options = {"extensions": [TaskSearch()], **options}
    async with reach(addresses, speech, headers=headers, **options) as remote:
        yield remote


@pytest.fixture
async def members(addresses: Sequence[str], speech: Speech) -> AsyncIterator[tuple[Any, ...]]:
    """Two members of one organisation, and one member of another organisation."""
    async with AsyncExitStack() as stack:
        yield tuple(
            [
                await stack.enter_async_context(
                    member_of(addresses, speech, name, idempotent=name != "bob")
                )
                for name in ("ada", "bob", "eve")
            ]
        )


def said(text: str, **more: Any) -> Message:
    given = {"message_id": secrets.token_hex(8), "role": Role.USER, "parts": (Part(text=text),)}
    return Message(**{**given, **more})


def about(task_id: str, context_id: str, speech: Speech) -> list[tuple[str, Any]]:
    """Return a request of each operation about one task."""
    hook = TaskPushNotificationConfig(task_id=task_id, id="hook", url=HOOK.url)
    found = [
        ("GetTask", GetTaskRequest(id=task_id)),
        ("GetTask", GetTaskRequest(id=task_id, history_length=-1)),
        ("CancelTask", CancelTaskRequest(id=task_id)),
        ("SubscribeToTask", SubscribeToTaskRequest(id=task_id)),
        ("SendMessage", saying(task_id=task_id)),
        ("SendMessage", saying(task_id=task_id, context_id=context_id)),
        ("SendMessage", saying(task_id=task_id, metadata={"skill": "write"})),
        ("SendStreamingMessage", saying(task_id=task_id)),
        ("CreateTaskPushNotificationConfig", hook),
        (
            "GetTaskPushNotificationConfig",
            GetTaskPushNotificationConfigRequest(task_id=task_id, id="hook"),
        ),
        (
            "ListTaskPushNotificationConfigs",
            ListTaskPushNotificationConfigsRequest(task_id=task_id),
        ),
        (
            "DeleteTaskPushNotificationConfig",
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="hook"),
        ),
    ]
    if speech.is_old and speech.binding == "GRPC":
        found = [each for each in found if getattr(each[1], "history_length", None) is None]
    return found


def shown(error: A2AError, *ids: str) -> tuple[Any, ...]:
    """Return an error's content without the ids that the request itself named."""
    text = f"{error.message} {sorted(error.metadata.items())} {error.violations} {error.details}"
    for id in ids:
        text = text.replace(id, "ID")
    return type(error), error.code, error.http_status, error.retry_after, error.challenges, text


async def test_a_foreign_id_is_answered_like_one_that_never_was(
    members: tuple[Any, ...], speech: Speech
) -> None:
    ada, _, eve = members
    task = await ada.send(said("secret"))
    written = await ada.send(said("secret", metadata={"skill": "write"}))
    done = await ada.send(said("secret", metadata={"skill": "refer"}))
    assert (task.state, done.state) == (TaskState.INPUT_REQUIRED, TaskState.COMPLETED)
    await ada.push.create(task.id, HOOK)
    for theirs in (task, written, done):
        unknown, context = theirs.id[:-4] + "0000", theirs.context_id[:-4] + "0000"
        for (name, foreign), (_, never) in zip(
            about(theirs.id, theirs.context_id, speech),
            about(unknown, context, speech),
            strict=True,
        ):
            told, expected = await refused(eve, name, foreign), await refused(eve, name, never)
            ids = (theirs.id, theirs.context_id, unknown, context)
            assert shown(told, *ids) == shown(expected, *ids), name
    assert (await ada.push.get(task.id, "hook")).url == HOOK.url
    assert (await ada.get(task.id)).state is TaskState.INPUT_REQUIRED


async def test_members_of_a_group_share_and_are_themselves(
    members: tuple[Any, ...], speech: Speech
) -> None:
    ada, bob, _ = members
    task = await ada.send(said("plan; "))
    await ada.push.create(task.id, HOOK)
    assert (await bob.push.get(task.id, "hook")).url == HOOK.url
    done = await bob.send(said("go on", task_id=task.id))
    assert done.text == "bob: kept"
    next_task = await bob.send(said("more", context_id=task.context_id))
    assert next_task.status.message.text.startswith("bob, after 'plan; plan; '")
    if not speech.is_old:
        listed = await bob.list(context_id=task.context_id)
        assert {each.id for each in listed.tasks} == {task.id, next_task.id}


async def test_counts_and_pages_are_those_of_the_owner(
    members: tuple[Any, ...], speech: Speech
) -> None:
    if speech.is_old:
        return  # 0.3 has no list
    ada, _, eve = members
    context = secrets.token_hex(8)
    theirs = [await ada.send(said("secret", context_id=context)) for _ in range(3)]
    mine = await eve.send(said("mine", context_id=context))
    listed = await eve.list(context_id=context)
    assert ([each.id for each in listed.tasks], listed.total_size) == ([mine.id], 1)
    page = await ada.list(context_id=context, page_size=1)
    assert (page.total_size, page.tasks[0].id) == (3, theirs[-1].id)
    # Another owner's page token at most starts a page of the caller's own tasks.
    for token_ in (page.next_page_token, (await ada.list(page_size=1)).next_page_token):
        stolen = await eve.list(context_id=context, page_token=token_)
        assert {each.id for each in stolen.tasks} <= {mine.id}
        assert stolen.total_size <= 1
    if speech.binding != "GRPC":
        found = await eve.call(SEARCH, SearchTasksRequest(text="secret", context_id=context))
        assert not found.tasks
        request = SearchTasksRequest(context_id=context, page_token=page.next_page_token)
        stolen = await eve.call(SEARCH, request)
        assert {each.id for each in stolen.tasks} <= {mine.id}
        shared = await ada.call(SEARCH, SearchTasksRequest(text="secret", context_id=context))
        assert len(shared.tasks) == 3


async def test_a_foreign_context_is_a_new_one(members: tuple[Any, ...]) -> None:
    ada, _, eve = members
    theirs = await ada.send(said("secret; "))
    for context_id in (theirs.context_id, secrets.token_hex(8)):
        mine = await eve.send(said("mine", context_id=context_id))
        assert mine.context_id == context_id
        assert mine.status.message.text == "eve, after '', 0 messages?"


async def test_a_reference_leads_to_no_foreign_task(
    members: tuple[Any, ...], speech: Speech
) -> None:
    if speech.is_old and speech.binding != "JSONRPC":
        return  # these ways have no references
    ada, bob, eve = members
    done = await ada.send(said("secret", metadata={"skill": "refer"}))
    artifact = done.artifacts[0].artifact_id

    def referring(task_id: str) -> Message:
        part = Part(text="that", metadata={"taskId": task_id, "artifactId": artifact})
        more = {"reference_task_ids": (task_id,), "metadata": {"skill": "refer"}}
        return said("", parts=(part,), **more)

    shared = await bob.send(referring(done.id))
    assert shared.text.startswith("1 tasks, 1 artifacts")
    for task_id in (done.id, "00000000"):
        assert (await eve.send(referring(task_id))).text == "0 tasks, 0 artifacts"


async def test_a_message_id_of_another_owner_is_free(members: tuple[Any, ...]) -> None:
    ada, _, eve = members
    message = said("same")
    theirs, mine = await ada.send(message), await eve.send(message)
    assert theirs.id != mine.id
    assert (await ada.send(message)).id == theirs.id
    assert (await eve.send(message)).id == mine.id
    other = said("another", message_id=message.message_id)
    told = []
    for remote in (ada, eve):  # each caller gets the same words about their own conflict
        with pytest.raises(A2AError) as caught:
            await remote.send(other)
        told.append(shown(caught.value))
    assert told[0] == told[1]


async def test_the_webhook_of_another_owner_is_untouched(members: tuple[Any, ...]) -> None:
    ada, _, eve = members
    theirs, mine = await ada.send(said("secret")), await eve.send(said("mine"))
    await ada.push.create(theirs.id, HOOK)
    await eve.push.create(mine.id, HOOK)
    await eve.push.delete(mine.id, "hook")
    assert (await ada.push.get(theirs.id, "hook")).url == HOOK.url
    with pytest.raises(TaskNotFoundError):
        await eve.push.get(mine.id, "hook")


async def test_who_may_own_nothing_learns_nothing(
    members: tuple[Any, ...], addresses: Sequence[str], speech: Speech
) -> None:
    task = await members[0].send(said("secret"))
    for name, kind in (("lone", PermissionDeniedError), ("", UnauthenticatedError)):
        async with member_of(addresses, speech, name) as remote:
            for operation, request in [
                *about(task.id, task.context_id, speech),
                ("SendMessage", saying()),
                ("SendStreamingMessage", saying()),
                *([] if speech.is_old else [("ListTasks", ListTasksRequest())]),
            ]:
                if getattr(request, "history_length", None) is not None:
                    continue
                told = await refused(remote, operation, request)
                assert type(told) is kind, operation
                assert task.id not in told.message


async def test_the_policy_decides_before_anything_is_looked_up(
    members: tuple[Any, ...], addresses: Sequence[str], speech: Speech
) -> None:
    """The policy bars a member of the group: the rejection is the same for any id."""
    task = await members[0].send(said("secret"))
    async with member_of(addresses, speech, "barred") as remote:
        for operation, request in about(task.id, task.context_id, speech):
            if operation.startswith("Send"):
                continue  # the server knows the skill first, and so finds the task
            told = await refused(remote, operation, request)
            assert type(told) is PermissionDeniedError, operation
        told = await refused(remote, "GetExtendedAgentCard", GetExtendedAgentCardRequest())
        assert type(told) is PermissionDeniedError
        if not speech.is_old:
            told = await refused(remote, "ListTasks", ListTasksRequest())
            assert type(told) is PermissionDeniedError
            if speech.binding != "GRPC":
                with pytest.raises(PermissionDeniedError):
                    await remote.call(SEARCH, SearchTasksRequest())


async def test_a_skill_that_needs_a_scope_needs_it_to_cancel_and_not_to_read(
    members: tuple[Any, ...],
) -> None:
    ada, bob, _ = members
    task = await ada.send(said("now", metadata={"skill": "write"}))
    assert (await bob.get(task.id)).id == task.id
    for request in (CancelTaskRequest(id=task.id),):
        told = await refused(bob, "CancelTask", request)
        assert type(told) is PermissionDeniedError
    assert (await ada.cancel(task.id)).state is TaskState.CANCELED


async def test_the_answer_of_a_message_is_repeated_to_those_who_may_send_it(
    members: tuple[Any, ...], addresses: Sequence[str], speech: Speech
) -> None:
    """A group member gets no repeat without the skill's scope, or if the policy bars them."""
    message = said("now", metadata={"skill": "write"})
    task = await members[0].send(message)
    for name in ("bob", "barred"):
        async with member_of(addresses, speech, name, idempotent=True) as remote:
            with pytest.raises(PermissionDeniedError):
                await remote.send(message)
    assert (await members[0].send(message)).id == task.id


async def test_files_belong_to_the_owner(
    members: tuple[Any, ...], addresses: Sequence[str], speech: Speech
) -> None:
    """Uploads need a scope; the group may read; a signed address works for its holder."""
    _, bob, eve = members
    async with aiohttp.ClientSession() as http:

        async def ask(name: str, verb: str, path: str, **more: Any) -> tuple[int, bytes]:
            headers = {"authorization": f"Bearer {name}"} if name else {}
            async with http.request(verb, path, headers=headers, **more) as answer:
                return answer.status, await answer.read()

        files = f"{addresses[0]}/files"
        statuses = [(await ask(name, "POST", files, json={"size": 9}))[0] for name in TOKENS]
        assert dict(zip(TOKENS, statuses, strict=True)) == {
            "ada": 201, "bob": 403, "eve": 201, "lone": 403, "barred": 403,
        }  # fmt: skip
        assert (await ask("", "POST", files, json={"size": 9}))[0] == 401
        headers = {"authorization": "Bearer ada"}
        async with http.post(files, json={"filename": "a.txt"}, headers=headers) as answer:
            begun = await answer.json()
        async with http.patch(
            begun["uploadUrl"],
            data=b"secret bytes",
            headers={"upload-offset": "0", "upload-complete": "?1"},
        ) as answer:
            assert answer.status == 204
        plain, unknown = f"{files}/{begun['id']}", f"{files}/{begun['id'][:-4]}0000"
        for reader in ("ada", "bob", ""):
            url = plain if reader else begun["url"]
            assert await ask(reader, "GET", url) == (200, b"secret bytes")
        for name, expected in (("eve", 404), ("lone", 403), ("barred", 403), ("", 401)):
            foreign, never = await ask(name, "GET", plain), await ask(name, "GET", unknown)
            assert foreign[0] == expected
            assert foreign == never

    def naming(url: str) -> Message:
        part = Part(url=url, filename="a.txt", media_type="text/plain")
        return said("", parts=(part,), metadata={"skill": "refer"})

    assert (await bob.send(naming(plain))).text.endswith("secret bytes")
    answers = [await eve.send(naming(url)) for url in (plain, unknown)]
    assert all(each.task and "secret" not in each.text for each in answers)
    assert answers[0].text == answers[1].text
