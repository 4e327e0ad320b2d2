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
from parley.engine.turn.attempt import Answer
from parley.engine.turn.task_writer import active
from parley.engine.turn.waits import seconds_of
from parley.model.cards import SecurityScheme
from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part, tasks_named
from parley.model.tasks import Task, TaskState
from parley.security.schemes.scheme import Scheme

if TYPE_CHECKING:
    from parley.agent.authorization import TaskCredential
    from parley.agent.remote.bound_agent import BoundAgent, MessageOptions
    from parley.agent.remote.callees import Callee
    from parley.agent.remote.delegation import BlockingAgent, TurnConnection
    from parley.agent.remote.turn_calls import TurnCalls
    from parley.agent.tools.tool import ToolSource
    from parley.agent.tools.turn_tools import TurnToolsOpening
    from parley.client.auth import AuthorizationCode
    from parley.client.message import Sendable

DEFAULT_EXPIRY = timedelta(hours=1)
"""How long a credential is waited for."""

P = ParamSpec("P")
R = TypeVar("R")


class Turn(TurnFacts):
    """One attempt at one turn: a call of an agent's function for one message.

    The function runs from the top for every turn of a task: for the message that begins the task,
    for the answer to each question, and again after a crash. ``ask`` and ``step`` replay their
    results from the log, so the same code serves all three. ``message`` began the task; ``latest``
    is the message of this turn.
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

        The bytes of a file by reference come from this server if it keeps the file, else from the
        part's address, through the egress guard. Raises ``ValueError`` for a part that is no file.
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
        """Return the artifacts that parts of the newest message name and its caller owns.

        The metadata of a part names one by ``artifactId``, and by ``taskId`` if it is ambiguous.
        """
        return await context.referenced_artifacts(self._context, self.latest, self.task_id)

    async def reference(
        self,
        question: str = "Which of these do you mean?",
        *,
        where: Callable[[Task], bool] | None = None,
        describe: Callable[[Task], str] | None = None,
    ) -> Task | None:
        """Return the earlier task that the message is about, and ask the caller when in doubt.

        That is the task that the message refers to, else the only earlier task in this context that
        succeeded, else ``None``. If there are several, the caller chooses: ``question`` is asked
        with a list of them, each described by ``describe``; the answer is a reference, a number, or
        words of the list. ``where`` filters the tasks.
        """
        return await context.reference(self._attempt, self._context, question, where, describe)

    async def wait_for(self, task: Task | str, *, timeout: float | None = None) -> Task:
        """Wait until another of the caller's tasks ends, and return it.

        The turn keeps working meanwhile, so two tasks must not wait for each other.
        Raises ``TaskNotFoundError``, and ``TimeoutError`` after ``timeout`` seconds.
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

        ``substate`` is metadata of extensions, by their URIs (``Extension.says``). It is added to
        the update and to its message, which the task shows; inactive extensions' is dropped.
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
    async def ask(self, question: object, *, key: str | None = None) -> Answer: ...

    @overload
    async def ask(self, question: object, *, answer: type[R], key: str | None = None) -> R: ...

    @overload
    async def ask(self, question: object, *, answer: object, key: str | None = None) -> Any: ...

    async def ask(self, question: object, *, answer: Any = None, key: str | None = None) -> Any:
        """Ask the caller, and return the message that answers, or a value of the type ``answer``.

        The task waits as INPUT_REQUIRED and costs nothing: the function ends here, and runs again
        from the top when the answer arrives. ``key`` identifies a question, else its order does.
        ``replayed`` of the answer is true if an earlier attempt had it already.

        With ``answer``, a type, the question goes out with its JSON Schema, and the answer is data
        that fits it, or text that is such a JSON object. The caller is asked again, and told what
        was wrong, until it fits. Raises ``TypeError`` for a type that has no JSON form.
        """
        if answer is not None:
            return await ask_typed(self._attempt, question, answer, key)
        return await self._attempt.ask(TaskState.INPUT_REQUIRED, question, key)

    @overload
    async def require_auth(self, content: object, *, key: str | None = None) -> Answer: ...

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
        """Ask for authorisation: for a credential, for a message, or until something has happened.

        With ``scheme``, ``scopes`` or ``oauth`` it returns a ``TaskCredential``, which arrives out
        of band (specification §7.6). The task shows the need as AUTH_REQUIRED, costs a row, and
        continues by itself: the function runs again from the top when the credential is there.

        ``scheme`` is one of ``parley.security`` or of a card, by default a bearer token. Whoever
        calls the agent posts the credential to an address that the task names
        (``RemoteAgent.authorize``), as the caller of this turn; ``from_anyone`` lets anybody post
        who has the address. With ``oauth`` (``parley.client.auth.AuthorizationCode``) the task
        names a page to log in at, and the server exchanges the code; the issuer must know
        ``base_url`` with ``/callbacks/oauth`` as a redirect URI.

        The credential is for the operation ``key`` of this task and the caller of this turn: it is
        taken once, kept sealed outside the log, and deleted when the turn ends. A later message
        asks again. Raises ``TimeoutError`` after ``expires``, and ``AuthorizationRefused``.

        Without these, the message that answers is returned; it grants nothing by itself. With
        ``until`` the turn keeps running and returns its result.
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
                "expires= and from_anyone= are for a credential: say which one is needed with "
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
        """Ask the agent's policy whether this turn's caller may do ``action`` with ``resource``.

        The policy gets an ``Access`` with both, the caller and its scopes, the skill and the task.
        Its decision is logged, durable before this returns, and holds for the turn: a further
        attempt, after a sleep or a crash, does not ask again. The next turn does, because another
        member of a group may have sent its message. ``key`` names a decision of its own, to ask
        again after a long wait. A turn logs up to 1,000 decisions. The task has the log, so
        there is one from then on; only a skill with ``replies="message"`` goes without.

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
        function ends here, and runs again from the top when the time has come, on any replica. The
        end of the sleep is logged when it begins, so a further attempt, for an answer or after a
        crash, does not sleep again. ``key`` identifies a sleep, else its order does.

        Branches that wait at the same time (``asyncio.gather``) sleep together; what other branches
        do without a ``step`` is cancelled and begins again. A sleep of a second or less does not
        end the function. Sleeping counts for ``turn_timeout`` and ``task_timeout``.

        Raises ``ValueError`` for a key that this turn has used, and for a negative duration.
        """
        await self._attempt.waits.sleep(seconds_of(duration, "a sleep"), key, message)

    async def wait_event(
        self, key: str, *, timeout: float | timedelta | None = None, message: object = None
    ) -> Any:
        """Wait until an event is complete, and return its value.

        The task waits as it does in ``sleep``. ``key`` names the event among this agent's events,
        for all its tasks and callers: put the id of what it is about into it. An event is completed
        once, from any process, before or after a task waits for it. The value is logged, so further
        attempts replay it.

        Raises ``TimeoutError`` after ``timeout`` (a ``timedelta``, or seconds), in further attempts
        too; the turn may wait for the same event again then.
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

        The result is logged before it is returned, and is read back with the same type. So it is
        JSON (a dict with str keys, list, str, number, bool, ``None``), or the return type that
        ``function`` declares: ``-> datetime``, ``-> tuple[int, str]``, ``-> Booking`` for a
        dataclass. An exception is not logged. A plain function runs in a thread. A crash between
        the end of the function and the write to the log runs it again: make it idempotent if that
        matters, for instance by ``turn.task_id`` and ``key``. A step that sleeps or waits for an
        event raises ``RuntimeError``.

        Raises ``ValueError`` for a key that this turn has used, and ``TypeError`` that says where a
        result would not read back as it is; nothing is logged then.
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
            with self._attempt.waits.step(key):
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
        JSON body of the POST becomes the value of the event, without one ``None``; ``wait_event``
        returns it. The address is the only credential: it completes this event and nothing else,
        until it ``expires`` (within 366 days). It contains the key, so put no secret into that.

        It begins with ``base_url``. Where callers are not trusted, give the server its ``url``: a
        caller could name another host, which the address would then have.

        Raises ``ValueError`` when the server's address is not known, and for an invalid key or
        ``expires``.
        """
        return await self._services.callbacks.address(
            self.base_url, key, tenant=self.tenant, expires=expires
        )

    async def messages(self) -> AsyncIterator[Message]:
        """Yield messages to this task as they arrive while the turn runs.

        Each belongs to this turn: its caller gets this turn's reply. The iterator never ends by
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
        others at least once; a further attempt takes the answer from the log, or asks for it. The
        deadline of the turn, the number of agents that called each other, and the trace travel
        with a message; the caller does not. See ``BoundAgent``. ``agent`` may also be an ``Agent``
        that this one ``uses``: it is called in this process, as the caller of this turn.

        ``remote = await turn.connect(url)`` opens it without a block. Turns share connections; this
        one is released when the block, or the turn, ends. Opening it raises what ``parley.connect``
        raises.
        """
        from parley.agent.remote.delegation import TurnConnection

        return TurnConnection(self._remote_calls, agent, options)

    async def delegate(
        self,
        agent: Callee | BoundAgent | BlockingAgent,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        pass_questions: bool = True,
        progress: bool = False,
        artifacts: bool = False,
        cancel_remote: bool = True,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Delegate to another agent, and return its answer: a task, or a direct message.

        ``agent`` is its address, what ``parley.find`` or ``turn.connect`` returned, or an ``Agent``
        that this one ``uses`` (``Agent(uses=[...])``). Its
        questions are passed on to the caller, unless ``pass_questions`` is false; ``progress`` and
        ``artifacts`` pass its artifacts on to this task. ``key`` identifies the call, else its
        order among those to the agent does. With ``cancel_remote=False`` the remote task is not
        canceled when this task is canceled or fails. The other options are those of
        ``RemoteAgent.send``.

        Raises ``RemoteTaskFailed`` if the task ends without success, ``A2AError`` and
        ``ClientError`` as ``RemoteAgent.send`` does.
        """
        from parley.agent.remote.delegation import delegate

        return await delegate(
            self._remote_calls,
            agent,
            message,
            key=key,
            pass_questions=pass_questions,
            progress=progress,
            artifacts=artifacts,
            cancel_remote=cancel_remote,
            timeout=timeout,
            **options,
        )

    # -- tools ---------------------------------------------------------------------------------

    def tools(self, *sources: ToolSource, progress: bool = True) -> TurnToolsOpening:
        """Use the tools of sources: ``async with turn.tools(McpServer(url)) as tools``.

        ``await tools.call("name", {...})`` calls one once in the life of the task: further attempts
        take the result from the log. A source may ask the caller of this turn meanwhile.
        ``progress`` shows the progress of calls as progress of the task. ``tools = await
        turn.tools(source)`` opens them without a block.

        Opening it raises what its sources raise: ``ToolsUnavailable``, and ``ImportError`` where a
        package is not installed.
        """
        from parley.agent.tools.turn_tools import TurnToolsOpening

        if self._tool_calls is None:
            self._tool_calls = Counter()
        counts = self._tool_calls
        return TurnToolsOpening(self, sources, counts, progress=progress)

    def shared(self, make: Callable[[], S]) -> S:
        """Return the resource that ``make`` makes once for all turns of the agent on its server.

        ``make`` is a class or a function of a module: its identity names the resource. The server
        awaits ``aclose()`` of the resource when it stops.

        Raises ``RuntimeError`` for more than 100 resources, as a new function in each turn makes.
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

        ``function`` gets the value that ``recall`` returns, else ``default``, and returns the new
        value; ``None`` removes it. No other turn or replica writes in between: of 30 concurrent
        turns that add 1, each counts. The new value is durable before this returns.

        ``function`` is plain and fast: the event loop waits for it. It is called again if another
        replica was faster; its last result counts. If it raises, nothing changes. It must not
        update anything itself.

        A further attempt at the turn, for an answer or after a crash, updates again, like
        ``remember``. To count once in the life of the task, make it a step:
        ``await turn.step("counted", turn.update, "count", add_one, 0)``.

        Raises ``TypeError`` as ``remember`` does, and for a coroutine function.
        """
        return await self._context.update(key, function, default)

    async def remember(self, key: str, value: Any) -> None:
        """Store a JSON value in this context, across tasks and restarts; ``None`` removes it.

        ``recall`` returns the same value. Raises ``TypeError`` that says where a value is not JSON.
        """
        await self._context.set(key, value)


def _returned(function: Callable[..., Any]) -> Any:
    try:
        kind = typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any
    return Any if isinstance(kind, TypeVar) else kind
