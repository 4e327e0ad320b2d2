"""Credentials for a task that arrive out of band: who may give them, how often, their receivers."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import pickle
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

import parley
from parley import Agent, BlockingTurn, Task, TaskState, Turn
from parley.agent.authorization import AuthorizationRefused, TaskCredential
from parley.client import AuthRequest, auth_request
from parley.client import auth as client_auth
from parley.client.errors import ClientError, OriginNotTrusted, UnexpectedStatus
from parley.model.cards import APIKeySecurityScheme, HTTPAuthSecurityScheme, SecurityScheme
from parley.model.service import Caller
from parley.security import Bearer, anonymous
from parley.server.run import serving
from parley.testing import Issuer
from tests.kit.services.proxy import FaultyProxy
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

TOKEN = "hush-0a1b2c3d4e5f-hush"
MAIL = "I need to read your mail."
KEYS = SecurityScheme(
    api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-Mail-Key")
)
BASIC = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Basic"))


def post_office(**options: Any) -> Agent:
    agent = Agent("Post office", **options)

    @agent.skill(replies="task")
    async def read(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scopes="mail.read", key="mail")
        assert isinstance(credential, TaskCredential)
        return f"{credential.headers['Authorization'] == f'Bearer {TOKEN}'} {credential!r}"

    @agent.skill(replies="task")
    def read_in_thread(turn: BlockingTurn) -> str:
        credential = turn.require_auth(MAIL, scopes=["mail.read"])
        return str(credential.token == TOKEN)

    @agent.skill(replies="task")
    async def key(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scheme=KEYS)
        return str(credential.headers == {"X-Mail-Key": TOKEN})

    @agent.skill(replies="task")
    async def login(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scheme=BASIC)
        return str((credential.username, credential.password) == ("ada", TOKEN))

    @agent.skill(replies="task")
    async def open_to_all(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scopes="mail.read", from_anyone=True)
        return str(credential.token == TOKEN)

    @agent.skill(replies="task")
    async def briefly(turn: Turn) -> str:
        try:
            await turn.require_auth(MAIL, scopes="x", expires=timedelta(milliseconds=200))
        except TimeoutError:
            return "too late"
        return "in time"

    @agent.skill(replies="task")
    async def refusable(turn: Turn) -> str:
        try:
            await turn.require_auth(MAIL, scopes="mail.read")
        except AuthorizationRefused as refused:
            return f"refused: {refused.error}"
        return "given"

    @agent.skill(replies="task")
    async def twice(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scopes="mail.read", key="mail")
        answer = await turn.ask("Which folder?")
        return f"{answer.text} {credential.token == TOKEN}"

    @agent.skill(replies="task")
    async def sleepy(turn: Turn) -> str:
        await turn.require_auth(MAIL, scopes="mail.read", key="mail")
        await turn.sleep(1.2)
        again = await turn.require_auth(MAIL, scopes="mail.read", key="other")
        return str(again.token == TOKEN)

    return agent


@asynccontextmanager
async def office(**options: Any) -> AsyncIterator[str]:
    agent = options.pop("agent", None) or post_office(**options)
    async with serving(parley.asgi(agent, drain=0.0)) as url:
        yield url


async def asking(remote: Any, skill: str = "read") -> Task:
    """Send a message, and return the task that waits for a credential."""
    task = await remote.send("hi", metadata={"skill": skill})
    assert task.id
    assert task.state is TaskState.AUTH_REQUIRED, task
    return task


def needed(task: Task) -> AuthRequest:
    found = auth_request(task)
    assert found is not None
    return found


async def post(url: str, value: Any, **options: Any) -> int:
    async with aiohttp.ClientSession() as session, session.post(url, json=value, **options) as got:
        return got.status


async def ended(remote: Any, task: Task) -> str:
    async with asyncio.timeout(15):
        while not (found := await remote.get(task.id)).state.is_terminal:
            await let_time_pass(0.02)
    return str(found.text)


# -- the request to the user, and the turn that resumes by itself -------------------------------


async def test_the_turn_goes_on_by_itself(replicas: Callable[..., Any]) -> None:
    async with replicas(post_office()) as urls, parley.connect(urls[0]) as remote:
        task = await asking(remote)
        request = needed(task)
        assert (request.text, request.id, request.scopes) == (MAIL, "mail", ("mail.read",))
        assert request.scheme is not None
        assert request.scheme.http_auth_security_scheme is not None
        assert request.expires_at is not None
        callback = request.callback.replace(urls[0], urls[-1])  # any replica accepts the callback
        assert await post(callback, {"access_token": TOKEN}) == 204
        said = await ended(remote, task)
        assert said.startswith("True TaskCredential(")
        assert TOKEN not in said
        assert await post(callback, {"access_token": TOKEN}) in (409, 410)


@pytest.mark.parametrize(
    ("skill", "given"),
    [
        ("read_in_thread", TOKEN),
        ("key", TOKEN),
        ("key", client_auth.ApiKey(TOKEN)),
        ("login", ("ada", TOKEN)),
        ("login", client_auth.Basic("ada", TOKEN)),
        ("read_in_thread", client_auth.Bearer(TOKEN)),
        ("read_in_thread", {"access_token": TOKEN, "token_type": "bearer", "expires_in": 60}),
    ],
)
async def test_a_client_gives_what_is_asked(skill: str, given: Any) -> None:
    async with office() as url, parley.connect(url) as remote:
        task = await asking(remote, skill)
        await remote.authorize(task, given)
        assert await ended(remote, task) == "True"


async def test_the_stream_stays_open_until_the_end() -> None:
    async with office() as url, parley.connect(url) as remote:
        states = []
        async with remote.stream("hi", metadata={"skill": "read"}) as events:
            async for event in events:
                status = getattr(event, "status", None)
                if status is not None:
                    states.append(status.state)
                if status is not None and status.state is TaskState.AUTH_REQUIRED:
                    task = await remote.get(event.task_id)
                    await remote.authorize(task, TOKEN)
        assert TaskState.AUTH_REQUIRED in states
        assert states[-1] is TaskState.COMPLETED


async def test_whoever_is_asked_may_refuse() -> None:
    async with office() as url, parley.connect(url) as remote:
        task = await asking(remote, "refusable")
        await remote.authorize(task, {"error": "access_denied"})
        assert await ended(remote, task) == "refused: access_denied"


async def test_nothing_comes_in_time() -> None:
    async with office() as url, parley.connect(url) as remote:
        task = await asking(remote, "briefly")
        callback = needed(task).callback
        assert await ended(remote, task) == "too late"
        assert await post(callback, {"access_token": TOKEN}) == 410


# -- binding to the request and the caller ------------------------------------------------------


async def test_a_later_message_asks_again() -> None:
    async with office() as url, parley.connect(url) as remote:
        task = await asking(remote, "twice")
        first = needed(task).callback
        await remote.authorize(task, TOKEN)
        async with asyncio.timeout(10):
            while (await remote.get(task.id)).state is not TaskState.INPUT_REQUIRED:
                await let_time_pass(0.02)
        again = await remote.send("inbox", task=task)
        assert again.id
        assert again.state is TaskState.AUTH_REQUIRED
        assert needed(again).callback != first
        assert await post(first, {"access_token": TOKEN}) == 409
        await remote.authorize(again, TOKEN)
        assert await ended(remote, task) == "inbox True"


async def test_a_changed_address_or_that_of_another_agent_is_unknown() -> None:
    another = Agent("Other")
    another.skill(lambda: "hm", id="hm")

    async with (
        serving(parley.asgi([post_office(), another], drain=0.0)) as url,
        parley.connect(f"{url}/post-office") as remote,
    ):
        task = await asking(remote)
        callback = needed(task).callback
        given = {"access_token": TOKEN}
        end = "A" if callback[-5] != "A" else "B"
        assert await post(callback[:-5] + end + callback[-4:], given) == 404
        assert await post(callback.replace("/post-office/", "/other/"), given) == 404
        assert await post(callback[:-1], given) == 404
        assert await post(callback, {"access_token": "two words"}) == 400
        assert await post(callback, {"api_key": TOKEN}) == 400
        assert await post(callback, TOKEN) == 400
        assert await post(callback, {"access_token": TOKEN, "expires_in": "\u00b2"}) == 400
        assert await post(callback, {"access_token": "x" * 300_000}) == 413
        assert await post(callback, given) == 204


async def test_a_client_sends_a_credential_only_where_it_belongs() -> None:
    async with office() as url, parley.connect(url) as remote, office() as other:
        task = await asking(remote)
        message = task.status.message
        assert message is not None

        def elsewhere(host: str) -> Any:
            raw = parley.Part(data={"authorizationRequest": {"id": "1", "callback": f"{host}/x"}})
            return parley.Message(message_id="m", role=parley.Role.AGENT, parts=(raw,))

        with pytest.raises(OriginNotTrusted, match="nothing was"):
            await remote.authorize(elsewhere("https://evil.example"), TOKEN)
        with pytest.raises(ClientError, match="not encrypted"):
            await remote.authorize(elsewhere("http://evil.example"), TOKEN)
        with pytest.raises(OriginNotTrusted):
            await remote.authorize(elsewhere(other), TOKEN)
        with pytest.raises(UnexpectedStatus):
            await remote.authorize(elsewhere(other), TOKEN, trust=[other])
        with pytest.raises(ValueError, match="asks for no credential"):
            await remote.authorize(
                parley.Message(
                    message_id="m", role=parley.Role.AGENT, parts=(parley.Part(text="hm"),)
                ),
                TOKEN,
            )


# -- secrets ------------------------------------------------------------------------------------


def test_a_credential_shows_nothing_of_itself() -> None:
    credential = TaskCredential(KEYS, token=TOKEN)
    assert TOKEN not in repr(credential)
    assert TOKEN not in str(credential)
    assert TOKEN not in f"{credential}"
    for leak in (lambda: pickle.dumps(credential), lambda: copy.copy(credential)):
        with pytest.raises(TypeError, match="stays in memory"):
            leak()


# -- misuse -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scopes": "x", "until": asyncio.sleep(0)}, "leave out until="),
        ({"expires": timedelta(1)}, "scheme=, scopes= or oauth="),
        ({"scopes": "x", "expires": timedelta(0)}, "positive timedelta"),
        ({"scheme": "bearer"}, "SecurityScheme"),
        ({"oauth": "x"}, "AuthorizationCode"),
        ({"oauth": client_auth.AuthorizationCode("app")}, "issuer"),
    ],
)
async def test_misuse_says_what_would_be_right(options: dict[str, Any], words: str) -> None:
    agent, said = Agent("Misuser"), io.StringIO()

    @agent.skill(replies="task")
    async def misuse(turn: Turn) -> str:
        try:
            await turn.require_auth("x", **options)
        except (TypeError, ValueError) as error:
            said.write(str(error))
        return "done"

    async with office(agent=agent) as url, parley.connect(url) as remote:
        await remote.send("x")
    assert words in said.getvalue()


# -- OAuth: the callback is the redirect URI ----------------------------------------------------


def with_login(issuer: Issuer) -> Agent:
    agent = Agent("Reader")
    oauth = client_auth.AuthorizationCode("service", "secret", issuer=issuer.url)

    @agent.skill(replies="task")
    async def read(turn: Turn) -> str:
        try:
            credential = await turn.require_auth(MAIL, oauth=oauth, scopes="mail.read")
        except AuthorizationRefused as refused:
            return f"refused: {refused.error}"
        return f"{credential.token.count('.') == 2} {credential.scopes}"

    return agent


async def browse(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_a_user_opens_the_page_and_the_turn_goes_on() -> None:
    async with (
        Issuer() as issuer,
        office(agent=with_login(issuer)) as url,
        parley.connect(url) as remote,
    ):
        task = await asking(remote, "read")
        request = needed(task)
        assert request.callback == ""
        query = parse_qs(urlsplit(request.authorization_url).query)
        assert query["redirect_uri"] == [f"{url}/callbacks/oauth"]
        assert query["code_challenge_method"] == ["S256"]
        with pytest.raises(ValueError, match="authorization_url"):
            await remote.authorize(task, TOKEN)
        status, page = await browse(request.authorization_url)
        assert (status, "you may close this page" in page) == (200, True)
        assert (await ended(remote, task)).startswith("True ('mail.read',)")
        status, _ = await browse(request.authorization_url)
        assert status in (409, 410)


async def test_a_state_that_was_not_made_here_is_refused() -> None:
    async with (
        Issuer() as issuer,
        office(agent=with_login(issuer)) as url,
        parley.connect(url) as remote,
    ):
        task = await asking(remote, "read")
        state = parse_qs(urlsplit(needed(task).authorization_url).query)["state"][0]
        redirect = f"{url}/callbacks/oauth"
        assert (await browse(f"{redirect}?code=x&state={state[:-6]}AAAAAA"))[0] == 404
        assert (await browse(f"{redirect}?code=x"))[0] == 404
        assert (await browse(f"{redirect}?state={state}"))[0] == 400
        assert await post(f"{url}/callbacks/authorize/{state}", {"access_token": "x"}) == 404
        assert (await browse(f"{redirect}?code=stolen&state={state}"))[0] == 200
        assert (await ended(remote, task)).startswith("refused: ")


async def test_a_user_may_say_no() -> None:
    async with (
        Issuer() as issuer,
        office(agent=with_login(issuer)) as url,
        parley.connect(url) as remote,
    ):
        task = await asking(remote, "read")
        state = parse_qs(urlsplit(needed(task).authorization_url).query)["state"][0]
        answer = f"{url}/callbacks/oauth?error=access_denied&state={state}"
        assert (await browse(answer))[0] == 200
        assert await ended(remote, task) == "refused: access_denied"


@pytest.mark.slow
async def test_an_issuer_that_cannot_be_reached_is_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    issuer = Issuer()
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(serving(issuer.app))
        proxy = FaultyProxy("127.0.0.1", urlsplit(backend).port or 0)
        stack.push_async_callback(proxy.close)
        await proxy.accept()
        issuer.url = f"http://127.0.0.1:{proxy.port}"
        url = await stack.enter_async_context(office(agent=with_login(issuer)))
        remote = await stack.enter_async_context(parley.connect(url))
        task = await asking(remote, "read")
        async with (
            aiohttp.ClientSession() as session,
            session.get(needed(task).authorization_url, allow_redirects=False) as answer,
        ):
            back = answer.headers["location"]
        proxy.refuse()
        proxy.cut()
        assert (await browse(back))[0] == 200
        await until(lambda: "cannot be reached" in caplog.text)
        assert (await remote.get(task.id)).state is not TaskState.COMPLETED
        await proxy.accept()
        assert (await ended(remote, task)).startswith("True ('mail.read',)")


# -- chains of agents, and calls on behalf of the user ------------------------------------------


async def test_a_connection_with_a_credential_ends_with_the_turn_that_has_it() -> None:
    bank, agent = (
        Agent("Bank", security=Bearer(lambda token: Caller(id=token)) | anonymous),
        Agent("A"),
    )
    where: dict[str, str] = {}
    given: list[weakref.ref[TaskCredential]] = []

    @bank.skill
    async def whoami(turn: Turn) -> str:
        return turn.caller.id or "nobody"

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        auth: Any = False
        if turn.text == "for me":
            auth = await turn.require_auth("Who are you?", scopes="openid")
            given.append(weakref.ref(auth))
        async with turn.connect(where["bank"], auth=auth) as one:
            first = await one.send("who am I?")
        async with turn.connect(where["bank"], auth=[auth] if auth else auth) as two:
            return f"{first.text} {(await two.send('who am I?')).text}"

    async with (
        serving(parley.asgi(bank, drain=0.0)) as where["bank"],
        office(agent=agent) as url,
        parley.connect(url) as remote,
    ):
        assert (await remote.send("for nobody")).text == "nobody nobody"
        tasks = [await remote.send("for me") for _ in range(2)]
        for task, user in zip(tasks, ("ada", "bob"), strict=True):
            assert task.id
            await remote.authorize(task, user)
            assert await ended(remote, task) == f"{user} {user}"
            assert (await remote.send("for nobody")).text == "nobody nobody"

        def forgotten() -> bool:
            gc.collect()
            return [each() for each in given] == [None, None]

        await until(forgotten)


async def test_of_many_posts_at_once_one_counts(replicas: Callable[..., Any]) -> None:
    async with replicas(post_office()) as urls, parley.connect(urls[0]) as remote:
        task = await asking(remote)
        addresses = [needed(task).callback.replace(urls[0], url) for url in urls] * 6
        got = await asyncio.gather(*(post(each, {"access_token": TOKEN}) for each in addresses))
        assert got.count(204) == 1
        assert set(got) <= {204, 409, 410}
        assert (await ended(remote, task)).startswith("True")
