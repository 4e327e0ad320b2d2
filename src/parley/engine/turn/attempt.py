"""One attempt at a turn: its request, the records of earlier attempts, and its writes.

``agent/`` builds the author's ``Turn`` on it. ``TaskRunner`` runs it. The log records calls of
other agents, calls of tools, and the values that belong to the task, so that any replica that ends
the task can cancel and remove them, even after a crash.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import msgspec

from parley.engine.content import checked, read, to_parts
from parley.engine.handoff import HandedConversation
from parley.engine.skill import Skill
from parley.engine.turn import turn_log
from parley.engine.turn.task_writer import TaskWriter
from parley.engine.turn.waits import Waits
from parley.extensions.call_chain import Chain
from parley.model.errors import A2AError
from parley.model.ids import new_id
from parley.model.operations import SendMessageRequest
from parley.model.parts import Artifact, Message, Role
from parley.model.service import NO_TRACE, Caller, TraceContext
from parley.model.struct import A2AStruct, decode, encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState
from parley.store.events import (
    LoggedEvent,
    RecordKind,
    Scope,
    StepResult,
    StoredCaller,
    TurnStarted,
)
from parley.store.fold import CONTINUES
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from parley.engine.turn.task_runner import TaskRunner
    from parley.engine.turn.turn_log import ObservedTurn

T = TypeVar("T")


class TurnOver(RuntimeError):
    """The turn has ended, and accepts no more output."""


class Rejected(BaseException):
    """Raised by ``turn.reject``: the function rejects the request.

    ``except Exception`` does not catch it. ``metadata`` belongs to the message with the reason.
    """

    metadata: dict[str, Any] | None = None


class NotAuthorized(Exception):
    """The agent's policy does not allow an action (``turn.authorize``).

    Let it end the turn, or catch it and do without the action.

    The text is for the caller, and does not name the action; ``action`` and ``resource`` do.
    """

    def __init__(self, action: str, resource: str) -> None:
        super().__init__("The agent's policy does not allow you to do this.")
        self.action = action
        self.resource = resource


class Failed(BaseException):
    """Raised by ``turn.fail``: the function could not fulfil the request.

    ``except Exception`` does not catch it. ``metadata`` belongs to the message with the reason.
    """

    metadata: dict[str, Any] | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a turn: the message that began the task, with its metadata and caller.

    ``base_url`` is the agent's address as the sender of the turn's message saw it, unless the
    server's own address is configured. ``inputs`` are the values of typed parameters; ``None`` if
    they were not read yet. ``metadata`` belongs to the message that began the task,
    ``latest_metadata`` to the message of a later turn; so do ``first_trace`` and ``trace``.
    """

    message: Message
    skill: Skill
    caller: Caller
    tenant: str = ""
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None
    latest_metadata: dict[str, Any] | None = None
    extensions: frozenset[str] = frozenset()
    base_url: str = ""
    trace: TraceContext = NO_TRACE
    first_trace: TraceContext = NO_TRACE
    inputs: dict[str, Any] | None = None
    chain: Chain | None = None


class Decision(A2AStruct, frozen=True, kw_only=True):
    """A logged decision of the agent's policy in a turn, with the caller whom it concerns."""

    action: str
    resource: str = ""
    allowed: bool
    caller: StoredCaller | None = None


_CONTINUES = {CONTINUES: True}

DECISIONS = "authorize:"
"""The prefix of the keys of decisions. The turn and a key follow."""

MOST_DECISIONS = 1000
"""The maximum number of decisions that one turn logs."""


class Journal:
    """The records of earlier attempts and turns of the task, and the keys used in this attempt.

    ``answers`` by the key of their question, ``results`` of steps as JSON by key, and
    ``live_messages`` that a running turn received and that a re-run receives again.
    """

    def __init__(self) -> None:
        self.answers: dict[str, UserAnswer] = {}
        self.results: dict[str, msgspec.Raw] = {}
        self.live_messages: deque[Message] = deque()
        self.used_keys: set[str] = set()


class Attempt:
    """One attempt at one turn.

    All its output is written by the task's writer, in the order of the calls. ``ending`` determines
    the end of the turn, whatever the function catches, writes or returns afterwards.
    ``is_canceling``: the function is called because its task is canceled while no turn runs (see
    ``Skill.runs_on_cancel``).
    """

    # Class attributes as defaults, since most attempts never change them: keeps direct replies
    # cheap.
    finished = False
    observed: ObservedTurn | None = None
    reference = ""  # of a failure that was logged
    ending: Rejected | Failed | A2AError | None = None
    is_canceling = False
    parked = False
    asleep = False
    question_count = 0
    artifact_count = 0
    reference_count = 0
    decision_count = 0
    artifact_ids: frozenset[str] = frozenset()
    unowned: frozenset[str] = frozenset()
    buffers: tuple[Callable[[], object], ...] = ()  # functions that flush the streams' last chunks
    calls: frozenset[asyncio.Task[Any]] = frozenset()
    before_question: tuple[Callable[[], Awaitable[None]], ...] = ()
    on_end: tuple[Callable[[], None], ...] = ()
    handed: HandedConversation | None = None
    _journal: Journal | None = None
    _waits: Waits | None = None

    def __init__(
        self,
        runner: TaskRunner,
        request: Request,
        *,
        turn: int = 1,
        number: int = 1,
        latest: Message | None = None,
    ) -> None:
        self.runner = runner
        self.request = request
        self.turn = turn
        self.number = number
        self.latest = latest or request.message

    @property
    def journal(self) -> Journal:
        """The records of earlier attempts and turns."""
        if self._journal is None:
            self._journal = Journal()
        return self._journal

    def replay(self, records: PrivateRecords) -> None:
        """Fill the journal from the task's private records."""
        journal = self.journal
        for record in records.turns:
            started = record.event
            assert isinstance(started, TurnStarted)
            if started.answers and started.messages:
                message = started.messages[0]
                journal.answers[started.answers] = UserAnswer.of(message, replayed=True)
            if started.live:
                journal.live_messages.extend(started.messages)
        for record in records.remembered:
            remembered = record.event
            assert isinstance(remembered, StepResult)
            journal.results[remembered.key] = remembered.value

    def begin_again(self) -> None:
        """Prepare to run the function from the top again in this attempt, with its records.

        Call it when the function has ended.
        """
        self.journal.used_keys.clear()
        self.question_count = self.artifact_count = self.reference_count = 0
        self._waits = None

    @property
    def waits(self) -> Waits:
        """The sleeps and events that branches of the function wait for."""
        if self._waits is None:
            self._waits = Waits(self)
        return self._waits

    # -- writing -------------------------------------------------------------------------------

    def end_with(self, error: Rejected | Failed) -> NoReturn:
        """End the turn: raise an error that applies even if the function catches it."""
        if not (self.finished or self.ending):
            self.ending = error
            self.runner.stop_soon()
        try:
            raise error
        finally:
            del error  # avoids a reference cycle through its traceback

    def writer(self, *, buffered: bool = False) -> TaskWriter:
        """Return the task's writer. Creates the task if there is none yet.

        Raises ``TurnOver`` after the turn's end, except for text that streams ``buffered`` before
        it.
        """
        if self.finished or (self.ending is not None and not buffered):
            raise TurnOver("this turn has ended; its output would reach no caller")
        writer = self.runner.writer
        if writer is None:
            writer = self.runner.create_task()
        for write_buffered in self.buffers:
            write_buffered()
        return writer

    def working(self, *, buffered: bool = False) -> TaskWriter:
        """Return the task's writer, after setting a SUBMITTED task to WORKING."""
        writer = self.writer(buffered=buffered)
        if writer.fold.state is TaskState.SUBMITTED:
            writer.status(TaskState.WORKING)
        return writer

    def message(self, content: object) -> Message:
        """Return ``content`` as a message of the agent in this task."""
        if isinstance(content, Message):
            return msgspec.structs.replace(
                checked(content),
                role=Role.AGENT,
                message_id=content.message_id or new_id(),
                task_id=self.runner.task_id,
                context_id=self.runner.context_id,
            )
        return agent_message(content, self.runner)

    def next_artifact_id(self) -> str:
        """Return the id of the next artifact of this attempt.

        It depends only on the task and the artifact's number, so a re-run replaces the artifact.
        """
        self.artifact_count += 1
        return f"{self.runner.task_id[-12:]}-{self.artifact_count}"

    def write_artifact(
        self,
        artifact: Artifact,
        *,
        append: bool = False,
        last: bool = False,
        continues: bool = False,
        buffered: bool = False,
    ) -> TaskWriter:
        """Write an artifact or a chunk of one, after the buffered chunks of streams."""
        writer = self.working(buffered=buffered)
        self.write_chunk(writer, artifact, append=append, last=last, continues=continues)
        return writer

    def write_chunk(
        self, writer: TaskWriter, artifact: Artifact, *, append: bool, last: bool, continues: bool
    ) -> None:
        """Write an artifact or a chunk of one, before the buffered chunks of streams.

        The text of a chunk that ``continues`` is joined with the text before it to one part.
        """
        if artifact.artifact_id not in self.artifact_ids:
            self.artifact_ids |= {artifact.artifact_id}
        writer.say(
            TaskArtifactUpdateEvent(
                task_id=writer.task_id,
                context_id=writer.context_id,
                artifact=artifact,
                append=append,
                last_chunk=last,
                metadata=_CONTINUES if continues else None,
            )
        )

    # -- questions -----------------------------------------------------------------------------

    async def ask(self, state: TaskState, content: object, key: str | None) -> UserAnswer:
        """Return the answer to a question, or suspend the task until there is one.

        Awaits ``before_question`` before the task is suspended, which ends the function.
        """
        if key is None:
            key = self.next_question_key()
        self.use(f"ask:{key}", "question")
        answer = self.journal.answers.get(key)
        if answer is not None:
            return answer
        for prepare in self.before_question:
            await prepare()
        if self.observed is not None:
            self.observed.add_event("ask", key)
        writer = self.writer()
        message = self.message(content)
        writer.write(StepResult(key=f"ask:{key}", value=msgspec.Raw(b"null")))
        await self.runner.park(writer.status(state, message))
        never: asyncio.Future[UserAnswer] = asyncio.get_running_loop().create_future()
        return await never  # the runner cancels this function here

    def next_question_key(self) -> str:
        """Return the key of a question without a key of its own: its position."""
        self.question_count += 1
        return str(self.question_count)

    def use(self, key: str, what: str) -> None:
        """Record the use of a key. Raises ``ValueError`` if this attempt has used it before."""
        if key in self.journal.used_keys:
            raise ValueError(
                f"the {what} key {key.partition(':')[2]!r} is used twice in one turn; "
                f"a key names one {what}, so that its result can be found again"
            )
        self.journal.used_keys.add(key)

    # -- steps ---------------------------------------------------------------------------------

    def step_result(self, key: str) -> msgspec.Raw | None:
        """Return the JSON result of a step that an earlier attempt or turn completed."""
        self.use(f"step:{key}", "step")
        return self.journal.results.get(f"step:{key}")

    def log_result(self, key: str, value: object) -> None:
        """Log a fact of the task, which later attempts find among the results."""
        result = self.journal.results[key] = msgspec.Raw(msgspec.json.encode(value))
        self.working().write(StepResult(key=key, value=result))

    def logged(self, key: str, kind: type[T]) -> T | None:
        """Return the record under a key in the task's log."""
        value = self.journal.results.get(key)
        return None if value is None else decode(value, kind)

    async def log(self, key: str, record: A2AStruct, *, durable: bool = True) -> None:
        """Log a record of the task. With ``durable``, wait until it is durable."""
        writer = self.working()
        value = self.journal.results[key] = msgspec.Raw(encode(record))
        writer.write(StepResult(key=key, value=value))
        if durable:
            await writer.flush()
        else:
            self.runner.show_task()

    async def keep_result(self, key: str, value: bytes) -> None:
        """Log a step's result and wait until it is durable."""
        writer = self.working()
        result = self.journal.results[f"step:{key}"] = msgspec.Raw(value)
        writer.write(StepResult(key=f"step:{key}", value=result))
        await writer.flush()

    async def own_value(self, key: str, *, lists: bool = False) -> None:
        """Register the context value under ``key`` for removal at the end of the task.

        With ``lists``, the value is an object whose ``keys`` name further values to be removed. The
        registration is durable before this returns. Raises ``TurnOver`` after the turn's end.
        """
        writer, name = self.working(), f"{VALUE_PREFIX}{key}"
        if name not in self.journal.results:
            value = self.journal.results[name] = msgspec.Raw(LISTS if lists else b"null")
            writer.write(StepResult(key=name, value=value))
            self.unowned |= {name}
        if name in self.unowned:  # also if another branch of the function is registering it
            await writer.flush()
            self.unowned -= {name}

    # -- decisions of the policy ---------------------------------------------------------------

    def logged_decision(self, key: str) -> Decision | None:
        """Return the policy's logged decision under a key of this turn."""
        return self.logged(f"{DECISIONS}{self.turn}:{key}", Decision)

    async def log_decision(self, key: str, decision: Decision) -> None:
        """Log a decision, and wait until it is durable. Raises ``RuntimeError`` for too many."""
        prefix, results = f"{DECISIONS}{self.turn}:", self.journal.results
        if not self.decision_count:  # a later attempt continues the count
            self.decision_count = sum(each.startswith(prefix) for each in results)
        if self.decision_count >= MOST_DECISIONS:
            raise RuntimeError(
                f"a turn authorises up to {MOST_DECISIONS} different actions, because each is "
                "logged; authorise a common action instead, such as access to a folder"
            )
        self.decision_count += 1
        await self.log(prefix + key, decision)

    # -- calls of other agents -----------------------------------------------------------------

    @property
    def results(self) -> Mapping[str, msgspec.Raw] | None:
        """The task's stored values, as far as this attempt knows; ``None`` if there are none."""
        return None if self._journal is None else self._journal.results

    def begin_call(self, key: str) -> None:
        """Reserve the key of a call. Raises ``ValueError`` for a key that this turn has used."""
        self.use(f"{CALL_PREFIX}{key}", "call")

    def logged_call(self, key: str) -> RemoteCall | None:
        """Return the record of a call."""
        return self.logged(f"{CALL_PREFIX}{key}", RemoteCall)

    async def log_call(self, key: str, call: RemoteCall, *, durable: bool = True) -> None:
        """Log a call. With ``durable``, wait until it is durable."""
        await self.log(f"{CALL_PREFIX}{key}", call, durable=durable)
        if self.observed is not None and call.request is not None and not call.ended:
            turn_log.note("called", self.runner.facts, to=call.address)

    # -- live messages -------------------------------------------------------------------------

    async def next_message(self) -> Message:
        """Return the next message that arrives while the turn runs. It belongs to the turn."""
        if self.journal.live_messages:
            return self.journal.live_messages.popleft()
        writer = self.working()
        received = await self.runner.receive()
        writer.write(
            TurnStarted(
                turn=self.turn,
                attempt=self.number,
                live=True,
                entries=(received.entry,),
                messages=(received.message,),
            )
        )
        writer.open_turn(taken=1)
        await writer.flush()
        return received.message


def agent_message(content: object, runner: TaskRunner) -> Message:
    """Return ``content`` as a message of the agent in the runner's task."""
    return Message(
        message_id=new_id(),
        role=Role.AGENT,
        parts=to_parts(content),
        task_id=runner.task_id,
        context_id=runner.context_id,
    )


class UserAnswer(Message, frozen=True, kw_only=True, dict=True):
    """The message that answers a question. It compares and serializes like a message."""

    @classmethod
    def of(cls, message: Message, *, replayed: bool) -> Self:
        """Return an answer with the content of a message."""
        answer = cls(**{name: getattr(message, name) for name in message.__struct_fields__})
        answer.__dict__["replayed"] = replayed
        return answer

    @property
    def replayed(self) -> bool:
        """True if an earlier attempt had the answer, and may have acted on it already.

        It is false only in the attempt that the answer began. It is true in later turns, and after
        a crash, a deployment or a claim by another replica.
        """
        return bool(self.__dict__.get("replayed", False))

    def _message(self) -> Message:
        return Message(**{name: getattr(self, name) for name in self.__struct_fields__})

    def __eq__(self, other: object) -> bool:
        return self._message() == other

    def __hash__(self) -> int:
        return hash(self._message())

    def __copy__(self) -> Self:
        return self.of(self, replayed=self.replayed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _answer, (self._message(), self.replayed)


def _answer(message: Message, replayed: bool) -> UserAnswer:
    return UserAnswer.of(message, replayed=replayed)


_KINDS = (RecordKind.TURN, RecordKind.REMEMBERED)


class PrivateRecords:
    """Caches the private records of a task, and reads each record once."""

    __slots__ = ("_after", "remembered", "turns")

    def __init__(self) -> None:
        self.turns: list[LoggedEvent] = []
        self.remembered: list[LoggedEvent] = []
        self._after = (0, 0)

    async def update(self, store: TaskStore, task_id: str) -> None:
        """Add the records that were logged since the last call. Raises ``StoreError``."""
        for record in await store.private_records(task_id, _KINDS, after=self._after):
            (self.turns if record.kind is RecordKind.TURN else self.remembered).append(record)
            self._after = (record.seq, record.sub)


CALL_PREFIX = "call:"
"""The prefix of the keys of calls, among the keys of steps and questions."""


class RemoteCall(A2AStruct, frozen=True, kw_only=True):
    """The log record of one message to another agent.

    ``address`` is the agent's, without secrets; ``card`` is its card, if it was given without an
    address. ``request`` is the sent request; it is kept until the remote task is known. ``task_id``
    is the remote task. ``answered`` is set with the answer: a direct ``message``, or the ``task``
    (left out if it is large). ``ended``: the remote task needs no more attention. ``cancel``: the
    remote task is canceled together with this one. ``caller`` and ``tenant`` belong to a call of an
    agent of this process.
    """

    address: str
    card: dict[str, Any] | None = None
    request: SendMessageRequest | None = None
    task_id: str = ""
    context_id: str = ""
    answered: bool = False
    message: Message | None = None
    task: Task | None = None
    ended: bool = False
    cancel: bool = True
    caller: StoredCaller | None = None
    tenant: str = ""


def calls_to_cancel(results: Mapping[str, msgspec.Raw]) -> dict[str, RemoteCall]:
    """Return the calls, by name, that may still run and must end with their task.

    If several messages went to one remote task, the last one decides.
    """
    last: dict[tuple[str, str], tuple[str, RemoteCall]] = {}
    for key, value in results.items():
        if key.startswith(CALL_PREFIX):
            name, call = key.removeprefix(CALL_PREFIX), decode(value, RemoteCall)
            last[call.address, call.task_id or name] = (name, call)
    return {name: call for name, call in last.values() if call.cancel and not call.ended}


TOOL_PREFIX = "tool:"
"""The prefix of the keys of tool calls that a source records; their last ``state`` is
``returned``."""

VALUE_PREFIX = "value:"
"""The prefix of the keys of records of values; the key of the value follows."""

LISTS = b"true"
"""The content of such a record if the value has ``keys`` of further values to remove."""


async def forget_values(
    store: TaskStore, scope: Scope, context_id: str, results: Mapping[str, msgspec.Raw]
) -> None:
    """Remove the values that a context keeps for a task, as recorded in the task's log.

    Raises ``StoreError``.
    """
    for name, record in results.items():
        if not name.startswith(VALUE_PREFIX):
            continue
        key = name.removeprefix(VALUE_PREFIX)
        if bytes(record) == LISTS:
            found = await store.get_value(scope, context_id, key)
            for each in () if found is None else read(found)["keys"]:
                await store.set_value(scope, context_id, each, None)
        await store.set_value(scope, context_id, key, None)
