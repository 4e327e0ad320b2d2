"""The turn that an author's ``async`` function gets. ``agent/invoke.py`` makes it."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

import msgspec

from parley.agent import context
from parley.agent.artifact_stream import ArtifactStream
from parley.agent.files import FileAccess, TurnFile, referred
from parley.agent.services import S
from parley.agent.turn_facts import TurnFacts
from parley.agent.typed_questions import ask_typed
from parley.engine.content import check_metadata, check_text, checked, kept, read, to_parts
from parley.engine.turn.attempt import UserAnswer
from parley.engine.turn.task_writer import active
from parley.engine.turn.waits import seconds_of
from parley.model.cards import SecurityScheme
from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part, tasks_named
from parley.model.tasks import Task, TaskState
from parley.observe import tracing
from parley.security.schemes.scheme import Scheme

if TYPE_CHECKING:
    from parley.agent.authorization import TaskCredential
    from parley.agent.remote.bound_agent import BoundAgent, TurnCallOptions
    from parley.agent.remote.callees import Callee
    from parley.agent.remote.delegation import BlockingAgent, TurnConnection
    from parley.agent.remote.turn_calls import TurnCalls
    from parley.agent.tools.tool import ToolSource
    from parley.agent.tools.turn_tools import TurnToolsOpening
    from parley.client.answer import Answer
    from parley.client.auth import AuthorizationCode
    from parley.client.message import Sendable

DEFAULT_EXPIRY = timedelta(hours=1)
"""The default time to wait for a credential."""

P = ParamSpec("P")
R = TypeVar("R")


class Turn(TurnFacts):
    """One attempt at one turn: a call of an agent's function for one message.

    The function runs from the top for every turn of a task: for the message that begins the task,
    for the answer to each question, and again after a crash. ``ask`` and ``step`` replay their
    results from the log, so the same code serves all three cases. ``message`` began the task;
    ``latest`` is the message of this turn.
    """

    _calls: TurnCalls | None = None
    _tool_calls: Counter[str] | None = None

    # -- files ---------------------------------------------------------------------------------

    @property
    def files(self) -> tuple[TurnFile, ...]:
        """The file parts of the message that began the task: ``await turn.files[0].read()``."""
        return tuple(self.file(part) for part in self.message.parts if part.is_file)

    def file(self, part: Part) -> TurnFile:
        """Return a file part of any message or artifact, with methods to read it.

        The bytes of a file by reference are read from this server if it stores the file, else from
        the part's address, through the egress guard. Raises ``ValueError`` for a part that is not a
        file.
        """
        access = FileAccess(self._services, self._attempt.runner.scope)
        return TurnFile.of(part, access.open)

    # -- other tasks ---------------------------------------------------------------------------

    async def references(self) -> tuple[Task, ...]:
        """Return the tasks that the newest message refers to and its caller owns.

        They may still be working: see ``wait_for``.
        """
        return await self._context.tasks(tasks_named(self.latest))

    async def referenced_artifacts(self) -> tuple[Artifact, ...]:
        """Return the artifacts that parts of the newest message refer to and its caller owns.

        A part's metadata refers to one by ``artifactId``, and by ``taskId`` if it is ambiguous.
        """
        return await context.referenced_artifacts(self._context, self.latest, self.task_id)

    async def reference(
        self,
        question: str = "Which of these do you mean?",
        *,
        where: Callable[[Task], bool] | None = None,
        describe: Callable[[Task], str] | None = None,
    ) -> Task | None:
        """Return the earlier task that the message is about; ask the caller if it is ambiguous.

        That is the task that the message refers to, else the only earlier task in this context that
        succeeded, else ``None``. If there are several, the caller chooses: ``question`` is asked
        with a list of them, each described by ``describe``; the answer is a reference, a number, or
        words of the list. ``where`` filters the tasks.
        """
        return await context.reference(self._attempt, self._context, question, where, describe)

    async def wait_for(self, task: Task | str, *, timeout: float | None = None) -> Task:
        """Wait until another of the caller's tasks ends, and return it.

        The turn keeps running meanwhile, so two tasks must not wait for each other. Raises
        ``TaskNotFoundError``, and ``TimeoutError`` after ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            return await context.wait_for(self._attempt, task)

    async def other_tasks(self, limit: int = 20) -> tuple[Task, ...]:
        """Return the other tasks of this context, the last updated first."""
        return await self._context.others(self.task_id, limit)

    # -- output --------------------------------------------------------------------------------

    async def working(
        self,
        content: object = None,
        *,
        metadata: dict[str, Any] | None = None,
        substate: dict[str, Any] | None = None,
    ) -> None:
        """Send a status update, with or without a message.

        ``substate`` is metadata of extensions, by URI (``Extension.says``). It is added to the
        update and to its message, which the task shows; metadata of inactive extensions is dropped.
        """
        metadata = check_metadata(metadata)
        writer = self._attempt.writer()
        message = None if content is None else self._attempt.message(content)
        added = check_metadata(active(substate, self.extensions)) if substate else None
        if added:
            metadata = {**(metadata or {}), **added}
            if message is not None:
                merged = {**(message.metadata or {}), **added}
                message = msgspec.structs.replace(message, metadata=merged)
        writer.status(TaskState.WORKING, message, metadata)
        await writer.drain()

    async def artifact(
        self,
        content: object,
        *,
        name: str = "",
        description: str = "",
        artifact_id: str | None = None,
        media_type: str = "",
        filename: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Write a whole artifact and return its id.

        ``content`` is text, bytes, a path, data, a part or a list of parts. It replaces an artifact
        with the same id. Bytes and a path above the server's ``inline_file_bytes`` become a file by
        reference, which is kept as long as the task.
        """
        if isinstance(content, Artifact):
            artifact = checked(content)
        else:
            artifact_id = artifact_id or self._attempt.next_artifact_id()
            check_text(artifact_id=artifact_id, name=name, description=description)
            check_text(media_type=media_type, filename=filename)
            if not isinstance(content, str):
                content = await self._referred(content, media_type=media_type, filename=filename)
            artifact = Artifact(
                artifact_id=artifact_id,
                name=name or filename,
                description=description,
                parts=to_parts(content, media_type=media_type, filename=filename),
                metadata=check_metadata(metadata),
            )
        writer = self._attempt.write_artifact(artifact, last=True)
        await writer.drain()
        return artifact.artifact_id

    def stream(
        self,
        name: str = "",
        *,
        description: str = "",
        artifact_id: str | None = None,
        media_type: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> ArtifactStream:
        """Return an artifact to write chunk by chunk: ``async with turn.stream() as out``."""
        return ArtifactStream(
            self._attempt,
            name=name,
            description=description,
            artifact_id=artifact_id,
            media_type=media_type,
            metadata=check_metadata(metadata),
            referred=self._referred,
        )

    async def _referred(
        self, content: object, *, media_type: str = "", filename: str = ""
    ) -> object:
        return await referred(
            self._services, self._attempt, content, media_type=media_type, filename=filename
        )

    @overload
    async def ask(self, question: object, *, key: str | None = None) -> UserAnswer: ...

    @overload
    async def ask(self, question: object, *, answer: type[R], key: str | None = None) -> R: ...

    @overload
    async def ask(self, question: object, *, answer: object, key: str | None = None) -> Any: ...

    async def ask(self, question: object, *, answer: Any = None, key: str | None = None) -> Any:
        """Ask the caller, and return the answering message, or a value of the type ``answer``.

        The task waits as INPUT_REQUIRED and uses no memory: the function ends here, and runs again
        from the top when the answer arrives. ``key`` identifies a question; the default is its
        order. ``replayed`` of the answer is true if an earlier attempt had it already.

        With ``answer``, a type, the question is sent with its JSON Schema, and the answer is data
        that fits it, or text with such a JSON object. An answer that does not fit is rejected with
        the reasons, and the caller is asked again. Raises ``TypeError`` for a type that has no JSON
        form.
        """
        if answer is not None:
            return await ask_typed(self._attempt, question, answer, key)
        return await self._attempt.ask(TaskState.INPUT_REQUIRED, question, key)

    @overload
    async def require_auth(self, content: object, *, key: str | None = None) -> UserAnswer: ...

    @overload
    async def require_auth(
        self, content: object, *, key: str | None = None, until: Awaitable[R]
    ) -> R: ...

    @overload
    async def require_auth(
        self,
        content: object,
        *,
        key: str | None = None,
        scheme: Scheme | SecurityScheme,
        scopes: Sequence[str] | str = (),
        expires: timedelta = DEFAULT_EXPIRY,
        from_anyone: bool = False,
    ) -> TaskCredential: ...

    @overload
    async def require_auth(
        self,
        content: object,
        *,
        key: str | None = None,
        oauth: AuthorizationCode,
        scopes: Sequence[str] | str = (),
        expires: timedelta = DEFAULT_EXPIRY,
    ) -> TaskCredential: ...

    @overload
    async def require_auth(
        self,
        content: object,
        *,
        key: str | None = None,
        scopes: Sequence[str] | str,
        expires: timedelta = DEFAULT_EXPIRY,
        from_anyone: bool = False,
    ) -> TaskCredential: ...

    async def require_auth(
        self,
        content: object,
        *,
        key: str | None = None,
        until: Awaitable[Any] | None = None,
        scheme: Scheme | SecurityScheme | None = None,
        scopes: Sequence[str] | str = (),
        oauth: AuthorizationCode | None = None,
        expires: timedelta | None = None,
        from_anyone: bool = False,
    ) -> Any:
        """Ask for authorisation: for a credential, for a message, or until an awaitable is done.

        With ``scheme``, ``scopes`` or ``oauth`` it returns a ``TaskCredential``, which arrives out
        of band (specification §7.6). The task shows the request as AUTH_REQUIRED, uses no memory,
        and continues by itself: the function runs again from the top when the credential has
        arrived.

        ``scheme`` is a scheme of ``parley.security`` or of a card; the default is a bearer token.
        The agent's caller posts the credential to an address that the task names
        (``RemoteAgent.authorize``), as the caller of this turn; ``from_anyone`` lets anyone post
        who has the address. With ``oauth`` (``parley.client.auth.AuthorizationCode``) the task
        names a login page, and the server exchanges the code; the issuer must know ``base_url``
        with ``/callbacks/oauth`` as a redirect URI.

        The credential is for the operation ``key`` of this task and the caller of this turn: it is
        accepted once, kept encrypted outside the log, and deleted when the turn ends. A later
        message asks again. Raises ``TimeoutError`` after ``expires``, and ``AuthorizationRefused``.

        Without these, the answering message is returned; it grants nothing by itself. With
        ``until`` the turn keeps running and returns the awaitable's result.
        """
        if scheme is not None or scopes or oauth is not None:
            if until is not None:
                raise ValueError("a credential is waited for by itself: leave out until=")
            from parley.agent.authorization import CredentialRequests, need_of

            need = need_of(
                content,
                scheme,
                scopes,
                oauth,
                DEFAULT_EXPIRY if expires is None else expires,
                from_anyone=from_anyone,
            )
            return await CredentialRequests(self._attempt, self._services).require(need, key)
        if expires is not None or from_anyone:
            raise ValueError(
                "expires= and from_anyone= are for a credential: name the credential with "
                "scheme=, scopes= or oauth="
            )
        if until is None:
            return await self._attempt.ask(TaskState.AUTH_REQUIRED, content, key)
        writer = self._attempt.writer()
        writer.status(TaskState.AUTH_REQUIRED, self._attempt.message(content))
        await writer.flush()
        self._attempt.runner.reply()
        result = await until
        self._attempt.writer().status(TaskState.WORKING)
        return result

    # -- rights --------------------------------------------------------------------------------

    async def authorize(self, action: str, resource: str = "", *, key: str | None = None) -> None:
        """Check with the agent's policy that this turn's caller may do ``action`` with
        ``resource``.

        The policy gets an ``Access`` with both, the caller and its scopes, the skill and the task.
        Its decision is logged, durable before this returns, and applies to the turn: a later
        attempt, after a sleep or a crash, does not ask again. The next turn does, because another
        member of a group may have sent its message. ``key`` identifies a separate decision, to ask
        again after a long wait. A turn logs up to 1,000 decisions. The task has the log, so it
        exists from then on; only a skill with ``replies="message"`` has no log.

        Raises ``NotAuthorized`` if it is not allowed, which ends the task as REJECTED unless it is
        caught, and ``RuntimeError`` for an agent without a policy.
        """
        from parley.agent.authorization import authorize

        await authorize(self._services, self._attempt, action, resource, key)

    # -- time ----------------------------------------------------------------------------------

    async def sleep(
        self, duration: float | timedelta, *, key: str | None = None, message: object = None
    ) -> None:
        """Sleep for a duration: a ``timedelta``, or a number of seconds.

        The task stays WORKING, with ``message`` as its status, and is only a row in the store: the
        function ends here, and runs again from the top after the sleep, on any replica. The end of
        the sleep is logged when it begins, so a later attempt, after an answer or a crash, does not
        sleep again. ``key`` identifies a sleep; the default is its order.

        Branches that wait at the same time (``asyncio.gather``) sleep together; work of other
        branches outside of a ``step`` is cancelled and begins again. A sleep of a second or less
        does not end the function. Sleeping counts for ``turn_timeout`` and ``task_timeout``.

        Raises ``ValueError`` for a key that this turn has used, and for a negative duration.
        """
        await self._attempt.waits.sleep(seconds_of(duration, "a sleep"), key, message)

    async def wait_event(
        self, key: str, *, timeout: float | timedelta | None = None, message: object = None
    ) -> Any:
        """Wait until an event is complete, and return its value.

        The task waits as in ``sleep``. ``key`` names the event among this agent's events, for all
        its tasks and callers: include the id of its subject. An event is completed once, from any
        process, before or after a task waits for it. The value is logged, so later attempts replay
        it.

        Raises ``TimeoutError`` after ``timeout`` (a ``timedelta``, or seconds), in later attempts
        too; then the turn may wait for the same event again.
        """
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        return await self._attempt.waits.event(key, seconds, message)

    @overload
    async def step(
        self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def step(
        self, key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    async def step(
        self, key: str, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Call a function once in the life of the task; later attempts replay its result.

        The result is logged before it is returned, and is read back with the same type. So it must
        be JSON (a dict with str keys, list, str, number, bool, ``None``), or the return type that
        ``function`` declares: ``-> datetime``, ``-> tuple[int, str]``, ``-> Booking`` for a
        dataclass. An exception is not logged. A plain function runs in a thread. A crash between
        the end of the function and the write to the log runs it again: make it idempotent if that
        matters, for instance by ``turn.task_id`` and ``key``. A step that sleeps or waits for an
        event raises ``RuntimeError``.

        Raises ``ValueError`` for a key that this turn has used, and ``TypeError`` with the position
        of a part of the result that would change when read back; then nothing is logged.
        """
        if not callable(function):
            if inspect.iscoroutine(function):
                function.close()
            raise TypeError(
                f"step calls the function itself: turn.step({key!r}, function, arguments...), not "
                f"turn.step({key!r}, function(...)), which gives it a {type(function).__name__}"
            )
        kind = _returned(function)
        recalled = self._attempt.step_result(key)
        if recalled is None:
            result: Any
            name = getattr(function, "__name__", "function")
            with (
                self._attempt.waits.step(key),
                tracing.spanned(f"step {name}", attributes={"parley.key": key}),
            ):
                if inspect.iscoroutinefunction(function):
                    result = await function(*args, **kwargs)
                else:
                    result = await self._attempt.runner.in_thread(function, *args, **kwargs)
                    if isinstance(result, Awaitable):
                        result = await result
                what = f"step {key!r} returned {an(type(result).__qualname__)}"
                data = kept(result, kind, what=what, hint=", or declare what the function returns")
                await self._attempt.keep_result(key, data)
            return read(data, kind)
        return read(recalled, kind)

    async def callback(self, key: str, *, expires: timedelta = timedelta(days=30)) -> str:
        """Return a signed address: a POST to it completes the event ``key``, once.

        Give it to the service that calls back, such as a payment provider or a build server. The
        JSON body of the POST becomes the value of the event (``None`` without a body);
        ``wait_event`` returns it. The address is the only credential: it completes only this event,
        until it ``expires`` (within 366 days). It contains the key, so the key must not contain a
        secret.

        It begins with ``base_url``. If callers are not trusted, set the ``url`` of the server:
        otherwise a caller could name another host, which the address would then have.

        Raises ``ValueError`` when the server's address is not known, and for an invalid key or
        ``expires``.
        """
        return await self._services.callbacks.address(
            self.base_url, key, tenant=self.tenant, expires=expires
        )

    async def messages(self) -> AsyncIterator[Message]:
        """Yield messages to this task as they arrive while the turn runs.

        They belong to this turn: their senders get this turn's reply. The iterator never ends by
        itself.
        """
        while True:
            yield await self._attempt.next_message()

    # -- other agents --------------------------------------------------------------------------

    @property
    def _remote_calls(self) -> TurnCalls:
        if self._calls is None:
            from parley.agent.remote.turn_calls import TurnCalls

            self._calls = TurnCalls(self._attempt, self._services.connections)
        return self._calls

    def connect(self, /, agent: Callee, **options: Any) -> TurnConnection:
        """Connect to another agent: ``async with turn.connect(url) as remote``.

        ``remote`` is the client that ``parley.connect`` returns, with the same options, bound to
        this turn. An agent with idempotent sends runs each message once in the life of the task,
        other agents at least once; a later attempt gets the answer from the log, or asks for it.
        The deadline of the turn, the number of agents that called each other, and the trace are
        sent with a message; the caller is not. See ``BoundAgent``. ``agent`` may also be an
        ``Agent`` in ``uses``: it is called in this process, as the caller of this turn.

        ``remote = await turn.connect(url)`` opens it without a block. Turns share connections; this
        connection is released when the block, or the turn, ends. Opening raises the errors of
        ``parley.connect``.
        """
        from parley.agent.remote.delegation import TurnConnection

        return TurnConnection(self._remote_calls, agent, options)

    @overload
    async def delegate(
        self,
        agent: Callee | BoundAgent | BlockingAgent,
        message: Sendable | None = None,
        *,
        returns: type[R],
        timeout: float | None = None,
        **options: Unpack[TurnCallOptions],
    ) -> Answer[R]: ...

    @overload
    async def delegate(
        self,
        agent: Callee | BoundAgent | BlockingAgent,
        message: Sendable | None = None,
        *,
        returns: object = None,
        timeout: float | None = None,
        **options: Unpack[TurnCallOptions],
    ) -> Answer[Any]: ...

    async def delegate(
        self,
        agent: Callee | BoundAgent | BlockingAgent,
        message: Sendable | None = None,
        *,
        returns: Any = None,
        timeout: float | None = None,
        **options: Unpack[TurnCallOptions],
    ) -> Answer[Any]:
        """Delegate to another agent, and return its answer.

        ``agent`` is an address, a result of ``parley.find`` or ``turn.connect``, or an ``Agent`` in
        ``uses`` (``Agent(uses=[...])``). Its questions are passed on to the caller, unless
        ``pass_questions`` is false. With ``returns``, a type, ``answer.data`` is a value of this
        type. The other ``options`` are ``TurnCallOptions``: ``progress`` and ``artifacts`` pass its
        progress and artifacts on to this task, ``key`` identifies the call.

        Raises ``RemoteTaskFailed`` if the task ends without success, and the ``A2AError`` and
        ``ClientError`` of ``RemoteAgent.send``.
        """
        from parley.agent.remote.delegation import delegate

        options.setdefault("pass_questions", True)
        return await delegate(
            self._remote_calls, agent, message, returns=returns, timeout=timeout, **options
        )

    # -- tools ---------------------------------------------------------------------------------

    def tools(self, *sources: ToolSource, progress: bool = True) -> TurnToolsOpening:
        """Use the tools of sources: ``async with turn.tools(McpServer(url)) as tools``.

        ``await tools.call("name", {...})`` calls a tool once in the life of the task: later
        attempts get the result from the log. A source may ask the caller of this turn meanwhile.
        ``progress`` shows the progress of calls as progress of the task. ``tools = await
        turn.tools(source)`` opens them without a block.

        Opening raises the errors of the sources: ``ToolsUnavailable``, and ``ImportError`` if a
        package is not installed.
        """
        from parley.agent.tools.turn_tools import TurnToolsOpening

        if self._tool_calls is None:
            self._tool_calls = Counter()
        counts = self._tool_calls
        return TurnToolsOpening(self, sources, counts, progress=progress)

    def shared(self, make: Callable[[], S]) -> S:
        """Return the resource that ``make`` creates once for all turns of the agent on its server.

        ``make`` is a class or a function of a module: its identity names the resource. The server
        awaits ``aclose()`` of the resource when it stops.

        Raises ``RuntimeError`` for more than 100 resources, which a new function in each turn would
        cause.
        """
        return self._services.shared(make)

    # -- the state of the context --------------------------------------------------------------

    async def history(self, limit: int = 50) -> Sequence[Message]:
        """Return the last messages of this context, of both sides, the oldest first.

        Raises ``RuntimeError`` unless the agent has ``Retention(history=True)``.
        """
        return await self._context.history(limit)

    async def recall(self, key: str, default: Any = None) -> Any:
        """Return the value that ``remember`` stored in this context under ``key``.

        To store a value that depends on it, use ``update``: other turns may write in between.
        """
        return await self._context.get(key, default)

    async def update(self, key: str, function: Callable[[Any], R], default: Any = None) -> R:
        """Change the value of ``key`` in this context atomically, and return the new value.

        ``function`` gets the value that ``recall`` returns, or ``default``, and returns the new
        value; ``None`` removes it. No other turn or replica writes in between: of 30 concurrent
        turns that add 1, each counts. The new value is durable before this returns.

        ``function`` must be plain and fast, since the event loop waits for it. It is called again
        if another replica was faster; its last result counts. If it raises, nothing changes. It
        must not call ``update`` itself.

        A later attempt at the turn, after an answer or a crash, updates again, like ``remember``.
        To count once in the life of the task, make it a step: ``await turn.step("counted",
        turn.update, "count", add_one, 0)``.

        Raises ``TypeError`` as ``remember`` does, and for a coroutine function.
        """
        return await self._context.update(key, function, default)

    async def remember(self, key: str, value: Any) -> None:
        """Store a JSON value in this context, across tasks and restarts; ``None`` removes it.

        ``recall`` returns the same value. Raises ``TypeError`` with the position of a value that is
        not JSON.
        """
        await self._context.set(key, value)


def _returned(function: Callable[..., Any]) -> Any:
    try:
        kind = typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any
    return Any if isinstance(kind, TypeVar) else kind
