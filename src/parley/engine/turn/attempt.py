"""One run of an author's function: what it was asked, what it remembers, and what it writes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from parley.engine.answer import Answer
from parley.engine.content import checked, to_parts
from parley.engine.skill import Skill
from parley.engine.turn.private_records import PrivateRecords
from parley.model.parts import Artifact, Message, Role
from parley.model.service import Caller
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from parley.model.uuid7 import new_id
from parley.store.events import Remembered, TurnStarted

if TYPE_CHECKING:
    from parley.agent.artifact_stream import ArtifactStream
    from parley.engine.turn.task_runner import TaskRunner
    from parley.engine.turn.task_writer import TaskWriter

log = logging.getLogger("parley.agent")


class TurnOver(RuntimeError):
    """The turn has ended; nothing more can be said in it."""


class Rejected(Exception):
    """The function will not do what it was asked (``turn.reject``)."""


class Failed(Exception):
    """The function could not do what it was asked (``turn.fail``)."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn was asked: the message that began the task, and what came beside it."""

    message: Message
    skill: Skill
    caller: Caller
    tenant: str = ""
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: frozenset[str] = frozenset()


class Past:
    """What a task remembers of the runs before, and which of it the present one has used.

    ``answers`` by the key of their question, ``remembered`` results of steps as JSON, messages
    that were ``passed`` to running turns and are to be passed again.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.remembered: dict[str, msgspec.Raw] = {}
        self.passed: deque[Message] = deque()
        self.used_keys: set[str] = set()


class Attempt:
    """One attempt at one turn.

    It knows what the task remembers: the answers to its questions, the results of its steps, the
    messages that earlier runs took in passing. Everything that it writes goes through its lane's
    writer, in the order of the calls.
    """

    # What most runs never change is theirs by class: a direct reply is short.
    over = False
    parked = False
    questions = 0
    artifacts = 0
    referrals = 0
    made: frozenset[str] = frozenset()
    streams: tuple[ArtifactStream, ...] = ()
    calls: frozenset[asyncio.Task[Any]] = frozenset()
    _past: Past | None = None

    def __init__(
        self,
        lane: TaskRunner,
        request: Request,
        *,
        turn: int = 1,
        attempt: int = 1,
        latest: Message | None = None,
    ) -> None:
        self.lane = lane
        self.request = request
        self.turn = turn
        self.attempt = attempt
        self.latest = latest or request.message

    @property
    def past(self) -> Past:
        """What the task remembers."""
        if self._past is None:
            self._past = Past()
        return self._past

    def recall(self, memory: PrivateRecords) -> None:
        """Take in what the log remembers of the task."""
        for record in memory.turns:
            started = record.event
            assert isinstance(started, TurnStarted)
            if started.answers and started.messages:
                message = started.messages[0]
                self.past.answers[started.answers] = Answer.of(message, replayed=True)
            if started.live:
                self.past.passed.extend(started.messages)
        for record in memory.remembered:
            remembered = record.event
            assert isinstance(remembered, Remembered)
            self.past.remembered[remembered.key] = remembered.value

    # -- writing -------------------------------------------------------------------------------

    def writer(self) -> TaskWriter:
        """Return the task's writer, making the task if there is none yet.

        Raises ``TurnOver`` after the turn's end.
        """
        if self.over:
            raise TurnOver("this turn has ended; what it says now would reach nobody")
        writer = self.lane.writer
        if writer is None:
            writer = self.lane.log()
        for stream in self.streams:
            stream.release()
        return writer

    def working(self) -> TaskWriter:
        """Return the writer of a task that is known to be at work."""
        writer = self.writer()
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
                task_id=self.lane.task_id,
                context_id=self.lane.context_id,
            )
        return Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=to_parts(content),
            task_id=self.lane.task_id,
            context_id=self.lane.context_id,
        )

    def next_artifact_id(self) -> str:
        """Return the id of the next artifact of this run.

        It depends on the task and the artifact's place alone, so that a further run replaces what
        this one made.
        """
        self.artifacts += 1
        return f"{self.lane.task_id[-12:]}-{self.artifacts}"

    def write_artifact(
        self, artifact: Artifact, *, append: bool = False, last: bool = False
    ) -> TaskWriter:
        """Write an artifact, or a further piece of one."""
        writer = self.working()
        self.write_chunk(writer, artifact, append=append, last=last)
        return writer

    def write_chunk(
        self, writer: TaskWriter, artifact: Artifact, *, append: bool, last: bool
    ) -> None:
        """Write through ``writer`` without regard to what streams hold back."""
        if artifact.artifact_id not in self.made:
            self.made |= {artifact.artifact_id}
        writer.artifact(
            TaskArtifactUpdateEvent(
                task_id=self.lane.task_id,
                context_id=self.lane.context_id,
                artifact=artifact,
                append=append,
                last_chunk=last,
            )
        )

    # -- parking -------------------------------------------------------------------------------

    async def ask(self, state: TaskState, content: object, key: str | None) -> Answer:
        """Return the answer to a question, or park the task until there is one."""
        if key is None:
            self.questions += 1
            key = str(self.questions)
        self._use(f"ask:{key}", "question")
        answer = self.past.answers.get(key)
        if answer is not None:
            return answer
        writer = self.writer()
        message = self.message(content)
        writer.write(Remembered(key=f"ask:{key}", value=msgspec.Raw(b"null")))
        said = writer.status(state, message)
        writer.close_turn(exchange=self.lane.exchange(self, said))
        self.over = self.parked = True
        await self.lane.park()
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never  # the lane cancels us here

    def _use(self, key: str, what: str) -> None:
        if key in self.past.used_keys:
            raise ValueError(
                f"the {what} key {key.partition(':')[2]!r} is used twice in one turn; "
                f"a key names one {what}, so that its result can be found again"
            )
        self.past.used_keys.add(key)

    # -- steps ---------------------------------------------------------------------------------

    def recalled(self, key: str) -> msgspec.Raw | None:
        """Return the JSON that a step left, if it was done before."""
        self._use(f"step:{key}", "step")
        return self.past.remembered.get(f"step:{key}")

    async def keep(self, key: str, value: bytes) -> None:
        """Log a step's result and wait until it is durable."""
        writer = self.working()
        writer.write(Remembered(key=f"step:{key}", value=msgspec.Raw(value)))
        await writer.flush()

    # -- messages in passing -------------------------------------------------------------------

    async def take(self) -> Message:
        """Return the next message that arrives while the turn runs."""
        if self.past.passed:
            return self.past.passed.popleft()
        writer = self.working()
        received = await self.lane.received()
        writer.write(
            TurnStarted(
                turn=self.turn,
                attempt=self.attempt,
                live=True,
                entries=(received.entry,),
                messages=(received.message,),
            )
        )
        writer.open_turn(taken=1)
        self.lane.senders.took(received)
        await writer.flush()
        return received.message
