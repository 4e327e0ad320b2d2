"""The public client of one agent: one method per call.

A call passes through ``RemoteService``, ``FailoverBinding`` and a binding, in this order. A stream
passes through ``turn_events`` or ``follow`` first.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import UNSET

from parley.client.answer import Answer, ReturnType
from parley.client.auth.authorizer import Authorizer
from parley.client.authorizing import Given, authorize
from parley.client.bindings.http import HttpTransport
from parley.client.calls.follow import StallDetector, follow, turn_events
from parley.client.calls.service import FailoverBinding, RemoteService, awaited
from parley.client.calls.stream_reader import (
    EventStream,
    StreamReader,
    is_settled,
    shows_prior_question,
    snapshot_before,
    with_final_text,
)
from parley.client.card.interface import declares
from parley.client.card.resolver import ResolvedCard
from parley.client.card.trust import CardCheck
from parley.client.card.verification import ConnectionCards
from parley.client.errors import ClientError, timeout_error
from parley.client.extensions import Activation, call_method
from parley.client.files.stream import FileStream, Progress
from parley.client.files.transfer import AgentFiles
from parley.client.files.upload import Uploadable
from parley.client.message import MessageOptions, Sendable, check_skill, compose
from parley.client.push import RemotePushConfigs
from parley.client.retry import Retry
from parley.model.backoff import Backoff
from parley.model.cards import AgentCard, AgentInterface
from parley.model.errors import A2AError
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS, A, ExtensionMethod, Q
from parley.model.operations import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import MAX_READ, Artifact, Message, Part
from parley.model.service import A2AService, CallContext
from parley.model.struct import Timestamp, encode
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent, reply_of
from parley.model.typed.value_type import to_json
from parley.wire import versions

R = TypeVar("R")


class RemoteAgent:
    """A connected agent. Made by ``connect``; an async context manager.

    ``service`` is the agent as an ``A2AService``, to be called with ``context``. ``push`` manages
    its push notification configurations. ``card_trust`` is the verdict on the signatures of
    ``card`` (see ``connect``).

    Every method raises ``A2AError`` when the agent returns an error and ``ClientError`` when the
    call itself fails. Wrong arguments raise ``TypeError`` and ``ValueError``, an unreadable file
    ``OSError``. Cancelling a call closes its connection; it never cancels the task.
    """

    _skill_options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        resolved: ResolvedCard,
        interfaces: FailoverBinding,
        context: CallContext,
        *,
        refetch: Callable[[], Awaitable[ResolvedCard]],
        retry: Retry,
        http: HttpTransport | None,
        files: AgentFiles,
        auth: Authorizer,
        activation: Activation,
        cards: ConnectionCards,
        skipped_interfaces: Sequence[AgentInterface] = (),
    ) -> None:
        self.card_trust: CardCheck = resolved.check
        self._cards = cards
        self.card_json: bytes = resolved.raw
        self.context = context
        self._remote = RemoteService(interfaces, resolved.card, retry)
        self.service = cast("A2AService", self._remote)
        self._interfaces = interfaces
        self._refetch = refetch
        self._retry = retry
        self._http = http
        self._files = files
        self._auth = auth
        self._activation = activation
        self._skipped_interfaces = tuple(skipped_interfaces)

    @property
    def card(self) -> AgentCard:
        """The agent's card, or its extended card after ``extended_card``."""
        return self._remote.card

    @property
    def interface(self) -> AgentInterface:
        """The interface in use: the first usable one of the card, or the last one that worked."""
        return self._interfaces.current.interface

    @property
    def skipped_interfaces(self) -> tuple[AgentInterface, ...]:
        """The interfaces that are not called, since their origins may not get the credentials."""
        return self._skipped_interfaces

    @property
    def version(self) -> str:
        """The protocol version in use, such as 1.0."""
        return self._interfaces.current.version

    @property
    def inline_bytes(self) -> int | None:
        """The maximum size of files in messages that the agent prefers; larger files are uploaded.

        ``None`` for an agent that declares no file transfer.
        """
        return self._files.inline_bytes

    @property
    def has_credentials(self) -> bool:
        """True if there are credentials from ``auth``, a login or the environment."""
        return self._auth.is_explicit

    @property
    def push(self) -> RemotePushConfigs:
        """The push notification configurations of tasks."""
        return RemotePushConfigs(self.service, self.context, self._remote)

    @property
    def _streams(self) -> bool:
        return bool(self.card.capabilities.streaming)

    @property
    def _numbered(self) -> bool:
        return declares(self.card, RESUMABLE_STREAMS)

    def _ends_stream(self, event: Event) -> bool:
        return versions.dialect(self.version).jsonrpc.ends_stream(event)

    @property
    def _repeatable(self) -> bool:
        return IDEMPOTENT_SEND in self.context.extensions and declares(self.card, IDEMPOTENT_SEND)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; open streams end with ``ConnectionClosed``. Idempotent."""
        try:
            await self._interfaces.aclose()
        finally:
            await self._cards.aclose()
            await self._files.aclose()
            await self._auth.aclose()
            if self._http is not None:
                await self._http.close()

    @overload
    async def send(
        self,
        message: Sendable | None = None,
        *,
        returns: type[R],
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Answer[R]: ...

    @overload
    async def send(
        self,
        message: Sendable | None = None,
        *,
        returns: object = None,
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Answer[Any]: ...

    @awaited
    async def send(
        self,
        message: Sendable | None = None,
        *,
        returns: Any = None,
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Answer[Any]:
        """Send a message and return the answer: a direct message, or the task when it has ended or
        waits for its caller.

        With ``returns``, a type, ``answer.data`` is a value of this type. ``return_immediately``
        returns the task as soon as it exists. ``timeout`` bounds uploads and the whole wait;
        without it the wait is as long as the task. The other ``options`` are ``MessageOptions``.

        A message that continues a task stays with the skill of the task. Raises
        ``InvalidParamsError`` with the ids on the card for an unknown skill, and ``ResultMismatch``
        for a result that does not fit ``returns``, or a card that announces another result.

        Paths and bytes that are too large for a message are uploaded first, if the agent declares
        file transfer; ready parts are sent unchanged.

        After a broken connection the message is sent again if the agent answers repeats only once,
        otherwise only if it was never sent. Raises ``Timeout``, with the task's id if it is known,
        and ``FileLimitExceeded`` before anything is sent.
        """
        result = self._result_type(returns, options.get("skill"))
        known_id, history_length = "", options.get("history_length")
        try:
            async with asyncio.timeout(timeout) if timeout is not None else nullcontext():
                request = await self._compose(
                    message, return_immediately=return_immediately, **options
                )
                request = self._activation.apply(request)
                known_id = request.message.task_id
                before = _task_in(options.get("task"))
                if before is not None and before.id != known_id:
                    before = None
                if before is None and known_id and not (return_immediately or self._numbered):
                    before = await snapshot_before(
                        self.service, self.context, known_id, history_length=0, timeout=timeout
                    )
                reply = await self.service.send_message(request, self.context)
                if (
                    isinstance(reply, Task)
                    and reply.id  # a task without an id cannot be polled
                    and not return_immediately
                    and (not is_settled(reply.state) or shows_prior_question(before, reply))
                ):
                    known_id = reply.id
                    reply = await self._settled(
                        known_id, before=before, history_length=history_length
                    )
        except TimeoutError:
            raise timeout_error(timeout, known_id) from None
        return self._answer(reply, result)

    def _result_type(self, returns: Any, skill: str | None = None) -> ReturnType | None:
        return None if returns is None else ReturnType.of_skill(returns, self.card, skill)

    def _answer(self, reply: Task | Message, result: ReturnType | None = None) -> Answer[Any]:
        return Answer(reply, agent=self.card.name, result=result)

    @overload
    def skill(self, skill: str, *, returns: type[R], **options: Any) -> SkillFunction[R]: ...

    @overload
    def skill(
        self, skill: str, *, returns: object = None, **options: Any
    ) -> SkillFunction[Any]: ...

    def skill(self, skill: str, *, returns: Any = None, **options: Any) -> SkillFunction[Any]:
        """Return a skill as a function: ``fare = agent.skill("fare", returns=Offer)``.

        ``fare(origin="BER")`` sends the arguments as the skill's data and returns the result as a
        value of ``returns``; without ``returns`` as JSON, or as text. A positional
        argument is the message of a skill that takes text. ``options`` are options of ``send`` for
        every call, such as ``timeout``.

        Raises ``InvalidParamsError`` for an unknown skill, and ``ResultMismatch`` if its schema on
        the card does not fit ``returns``. A call raises the errors of ``send``,
        ``RemoteTaskFailed`` and, when the agent asks a question, ``ResultMissing``.
        """
        check_skill(skill, self.card)
        self._result_type(returns, skill)
        given = {**self._skill_options, **options, "returns": returns, "skill": skill}
        return SkillFunction(self, given)

    def stream(
        self, message: Sendable | None = None, **options: Unpack[MessageOptions]
    ) -> EventStream:
        """Send a message and iterate over the events of its turn.

        Yields a direct ``Message``, or the ``Task`` and then its status and artifact updates, each
        once and in order; each has ``kind`` and ``text``. The ``options`` are ``MessageOptions``.
        After a broken connection an agent with resumable streams resumes after the last event. For
        other agents the client polls the task and derives the events; steps without a trace in the
        task are lost. An agent that does not stream is polled.

        The iterator raises ``StreamCut`` when the agent stays unreachable.
        """
        compose_request = partial(self._compose, message, **options)

        async def composed() -> SendMessageRequest:
            return self._activation.apply(await compose_request())

        reader = StreamReader(numbered=self._numbered)
        events = turn_events(
            self.service,
            self.context,
            composed,
            reader,
            streams=self._streams,
            repeatable=self._repeatable,
            retry=self._retry,
        )
        return EventStream(events, reader)

    async def _compose(
        self,
        message: Sendable | None,
        *,
        files: Sequence[str | Path | bytes | Part] = (),
        **options: Any,
    ) -> SendMessageRequest:
        """Return the request for a message, with large files uploaded."""
        if files or not (message is None or isinstance(message, str | Message | Part | dict)):
            message, files = await self._files.by_reference(message, files)
        return await compose(message, files=files, card=self.card, **options)

    @awaited
    async def get(self, task_id: str, *, history_length: int | None = None) -> Task:
        """Return the current task, with the last ``history_length`` messages (default: all)."""
        request = GetTaskRequest(id=task_id, history_length=history_length)
        return await self.service.get_task(request, self.context)

    @awaited
    async def list(
        self,
        *,
        context_id: str = "",
        status: TaskState = TaskState.UNSPECIFIED,
        page_size: int | None = None,
        page_token: str = "",
        history_length: int | None = None,
        status_timestamp_after: Timestamp | None = None,
        include_artifacts: bool | None = None,
    ) -> ListTasksResponse:
        """Return one page of the caller's tasks, the last updated first."""
        request = ListTasksRequest(
            context_id=context_id,
            status=status,
            page_size=page_size,
            page_token=page_token,
            history_length=history_length,
            status_timestamp_after=status_timestamp_after,
            include_artifacts=include_artifacts,
        )
        return await self.service.list_tasks(request, self.context)

    async def tasks(
        self,
        *,
        context_id: str = "",
        status: TaskState = TaskState.UNSPECIFIED,
        page_size: int | None = None,
        history_length: int | None = None,
        status_timestamp_after: Timestamp | None = None,
        include_artifacts: bool | None = None,
    ) -> AsyncIterator[Task]:
        """Iterate over all of the caller's tasks, page after page."""
        token = ""
        while True:
            page = await self.list(
                context_id=context_id,
                status=status,
                page_size=page_size,
                page_token=token,
                history_length=history_length,
                status_timestamp_after=status_timestamp_after,
                include_artifacts=include_artifacts,
            )
            for task in page.tasks:
                yield task
            # Without this check, an agent that repeats its page token would make the loop endless.
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    @awaited
    async def cancel(self, task_id: str, *, metadata: dict[str, Any] | None = None) -> Task:
        """Cancel a task and return it."""
        request = CancelTaskRequest(id=task_id, metadata=metadata)
        return await self.service.cancel_task(request, self.context)

    def subscribe(self, task_id: str, *, after: int | None = None) -> EventStream:
        """Iterate over the events of a task until it ends; a broken stream is resumed.

        Starts with the ``Task``. With ``after``, which needs an agent with resumable streams, it
        starts with the event of the next number, so 0 gives all events. Without ``after`` the agent
        rejects a task that has ended (``UnsupportedOperationError``).

        Raises ``ValueError`` for ``after`` if the agent does not number its events.
        """
        if after is not None and not self._numbered:
            raise ValueError(
                f"{self.card.name} does not number the events of its tasks; leave after out"
            )
        reader = StreamReader(
            numbered=self._numbered, ends=self._ends_stream, task_id=task_id, seq=after
        )
        context = msgspec.structs.replace(
            self.context, last_event_id=None if after is None else str(after)
        )
        request = SubscribeToTaskRequest(id=task_id)
        events = follow(
            self.service,
            self.context,
            reader,
            lambda: self.service.subscribe_to_task(request, context),
            retry=self._retry,
            repeatable=True,
            ends_with_turn=False,
        )
        return EventStream(events, reader)

    @overload
    async def wait(
        self,
        task: str | Task | Answer[Any],
        *,
        returns: type[R],
        poll: float | None = None,
        timeout: float | None = None,
        history_length: int | None = None,
    ) -> Answer[R]: ...

    @overload
    async def wait(
        self,
        task: str | Task | Answer[Any],
        *,
        returns: object = None,
        poll: float | None = None,
        timeout: float | None = None,
        history_length: int | None = None,
    ) -> Answer[Any]: ...

    @awaited
    async def wait(
        self,
        task: str | Task | Answer[Any],
        *,
        returns: Any = None,
        poll: float | None = None,
        timeout: float | None = None,
        history_length: int | None = None,
    ) -> Answer[Any]:
        """Return the answer when the task has ended or waits for its caller.

        ``task`` is the task or its id. If the given task waits for its caller, the answer is what
        follows: its next question, or its end. Follows the task's stream if the agent streams.
        Otherwise, or with ``poll``, polls it: quickly at first, then every ``poll`` seconds (2).
        ``returns`` is the type of ``answer.data``, as for ``send``.

        Raises ``Timeout`` after ``timeout`` seconds; the task continues.
        """
        result = self._result_type(returns)
        task_id = task if isinstance(task, str) else task.id
        before = None if isinstance(task, str) else _task_in(task)
        if not task_id:
            raise ValueError("a direct message has no task to wait for: it is the whole answer")
        try:
            async with asyncio.timeout(timeout):
                reply = await self._settled(
                    task_id,
                    before=before,
                    poll=poll,
                    history_length=history_length,
                    endless=timeout is not None,
                    patient=True,
                )
        except TimeoutError:
            raise timeout_error(timeout, task_id) from None
        return self._answer(reply, result)

    async def _settled(
        self,
        task_id: str,
        *,
        before: Task | None = None,
        poll: float | None = None,
        history_length: int | None = None,
        endless: bool = False,
        patient: bool = False,
    ) -> Task:
        """Return a task when it has ended or waits for its caller.

        ``before`` is the task before a message continued it. Unless ``endless``, the wait also ends
        if the task stays in an unknown state; unless ``patient``, after some polls if the task
        still has the question of ``before``.
        """
        initial = before
        interval = 2.0 if poll is None else poll
        backoff = Backoff(0.25, interval, factor=1.5)
        pauses = 0
        last_message: Message | None = None
        settled_polls = 0
        stall = StallDetector()
        while True:
            task = await self.get(task_id, history_length=history_length)
            if is_settled(task.state):
                settled_polls += 1
                if not shows_prior_question(before, task, polls=0 if patient else settled_polls):
                    return with_final_text(task, last_message, initial)
            elif not endless and stall.is_stalled(task):
                return with_final_text(task, last_message, initial)
            else:
                before = None
                last_message = task.status.message or last_message
                if poll is None and self._streams:
                    settled, streamed = await self._follow_until_settled(task_id)
                    last_message = streamed or last_message
                    if settled:
                        continue
            pauses += 1
            await asyncio.sleep(backoff.delay(pauses))

    async def _follow_until_settled(self, task_id: str) -> tuple[bool, Message | None]:
        """Follow a task's stream. Return whether the task settled, and its last status message."""
        stream = self.subscribe(task_id)
        last_message: Message | None = None
        try:
            async with stream:
                async for event in stream:
                    if isinstance(event, Task | TaskStatusUpdateEvent):
                        last_message = event.status.message or last_message
                    if stream.is_settled:
                        return True, last_message
        except (A2AError, ClientError):  # without a stream the task is polled
            return False, last_message
        return False, last_message

    @awaited
    async def authorize(
        self,
        task: Task | Message | Answer[Any],
        credential: Given,
        *,
        trust: Sequence[str] = (),
        return_immediately: bool = False,
        timeout: float | None = None,
    ) -> Answer[Any]:
        """Send an AUTH_REQUIRED task the credential that it asks for, and return the answer that
        follows.

        ``task`` is the answer or the task that asks, or the message of its status. ``credential``
        is a token or an API key, a user and a password, a token response as a dict, or a credential
        of ``parley.client.auth``; ``{"error": "access_denied"}`` denies the request. It is sent
        once, to the callback that the task names (``answer.auth_request``), and not as a message,
        so it is in no history. The callback must be at the agent's own origin, or at one of
        ``trust`` if an agent asks that works for this one; without encryption only on this machine.
        ``return_immediately`` returns the task as soon as the credential is accepted.

        Raises ``ValueError`` for a task that asks for no credential, ``OriginNotTrusted`` and
        ``NotEncrypted`` before anything is sent, ``ClientError`` if it is not accepted, and
        ``Timeout`` if no answer follows within ``timeout`` seconds; the task continues.
        """
        asked = reply_of(task)
        before = asked if isinstance(asked, Task) else None
        if isinstance(asked, Message) and asked.task_id:
            before = await self.get(asked.task_id)
        await authorize(self._files, asked, credential, trust)
        if before is None or return_immediately:
            return self._answer(asked if before is None else await self.get(before.id))
        try:
            async with asyncio.timeout(timeout):
                endless = timeout is not None
                reply = await self._settled(before.id, before=before, endless=endless)
        except TimeoutError:
            raise timeout_error(timeout, before.id) from None
        return self._answer(reply)

    async def upload(
        self,
        file: Uploadable,
        *,
        filename: str = "",
        media_type: str = "",
        progress: Progress | None = None,
    ) -> Part:
        """Upload a file to the agent, and return a part that refers to it.

        ``file`` is a path, bytes, a file open for reading, or an iterator of bytes. Only one chunk
        at a time is in memory. After a broken connection the upload continues at the same position,
        even if the server was restarted. ``progress`` is called with the number of bytes sent so
        far and the size, ``None`` if unknown. The agent removes the file after a while if no
        message refers to it.

        Raises ``FileLimitExceeded``, ``FileMismatch`` for a file that changes during the upload,
        and ``ClientError`` if the agent declares no file transfer.
        """
        return await self._files.upload(
            file, filename=filename, media_type=media_type, progress=progress
        )

    def open(self, part: Part, *, progress: Progress | None = None) -> FileStream:
        """Return the bytes of a file part as a stream: from ``raw``, or from ``url``.

        After a broken connection the download continues at the same position. Credentials are sent
        only to the agent's own origin and to ``trust_origins``; other addresses must be public (see
        ``connect``). The stream raises ``FileMismatch`` if the file differs from its announcement,
        and ``AddressNotAllowed``.

        Raises ``ValueError`` for a part that is not a file.
        """
        return self._files.open(part, progress=progress)

    async def read(self, part: Part, *, limit: int = MAX_READ) -> bytes:
        """Return all bytes of a file part.

        Raises ``FileLimitExceeded`` for more than ``limit`` (64 MiB), and the errors of ``open``.
        """
        return await self._files.open(part).read(limit=limit)

    @overload
    async def download(
        self, source: Part, to: str | Path | None = None, *, progress: Progress | None = None
    ) -> Path: ...

    @overload
    async def download(
        self,
        source: Artifact | Message | Task | Answer[Any],
        to: str | Path | None = None,
        *,
        progress: Progress | None = None,
    ) -> builtins.list[Path]: ...

    async def download(
        self,
        source: Part | Artifact | Message | Task | Answer[Any],
        to: str | Path | None = None,
        *,
        progress: Progress | None = None,
    ) -> Path | builtins.list[Path]:
        """Write a file part to disk and return its path, or all files of an object and their paths.

        For a part, ``to`` is a path or an existing folder. For an artifact, a message or a task it
        is a folder, which is created if needed. The default is the current folder. In a folder a
        file gets the agent's name for it, made safe, with a number if the name is in use. A file
        appears when it is complete. Raises the errors of ``open`` and its stream, and ``OSError``.
        """
        source = reply_of(source) if isinstance(source, Answer) else source
        paths = await self._files.download(source, to, progress=progress)
        return paths[0] if isinstance(source, Part) else paths

    async def call(self, method: ExtensionMethod[Q, A], request: Q) -> A:
        """Call a method of one of the agent's extensions, and return its answer."""
        return await call_method(self._remote, method, request, self.context)

    async def refresh_card(self) -> AgentCard:
        """Return the agent's current card, fetched again unless the cached card is still fresh.

        The connection continues to use its present card. Raises ``CardNotTrusted``.
        """
        return (await self._refetch()).card

    async def extended_card(self) -> AgentCard:
        """Return the card for authenticated callers; it replaces ``card``.

        From then on it decides which features the agent supports (§3.1.11). Raises
        ``CardNotTrusted``.
        """
        self._cards.received.clear()
        card: AgentCard = await self.service.get_extended_agent_card(
            GetExtendedAgentCardRequest(), self.context
        )
        raw = encode(card)
        card, self.card_trust = await self._cards.verify_extended(card, raw, self.version)
        self._remote.card, self.card_json = card, raw
        return card


def _task_in(given: Task | Answer[Any] | None) -> Task | None:
    return given.task if isinstance(given, Answer) else given


class SkillFunction(Generic[R]):
    """A skill of a remote agent as an async function: see ``RemoteAgent.skill``."""

    def __init__(self, agent: RemoteAgent, options: dict[str, Any]) -> None:
        self._agent = agent
        self._options = options

    async def __call__(self, message: Sendable | None = None, /, **arguments: Any) -> R:
        """Call the skill, and return its result."""
        data = to_json(arguments) if arguments or message is None else UNSET
        answer = await self._agent.send(message, data=data, **self._options)
        result = answer.required().data
        return cast("R", answer.text if result is None else result)

    def __repr__(self) -> str:
        return f"<the skill {self._options['skill']!r} of {self._agent.card.name}>"
