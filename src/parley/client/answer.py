"""The answer of an agent: one face for a direct message and a task, and its typed result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, Self, TypeVar, cast

from msgspec import UNSET

from parley.client.errors import RemoteTaskFailed, ResultMismatch, ResultMissing
from parley.extensions.declared import schemas_on
from parley.extensions.questions import AuthRequest, Question, auth_request, question
from parley.model.cards import AgentCard
from parley.model.parts import Artifact, Message, Part
from parley.model.struct import encode
from parley.model.tasks import Task, TaskState, TaskStatus
from parley.model.typed.value_type import ValueType, read_text
from parley.model.typed.violations import Mismatch, conflicts

T_co = TypeVar("T_co", covariant=True)


class ReturnType:
    """The type of the result of an agent.

    ``offered`` is the schema of the result on the agent's card. Raises ``UnsupportedType`` for a
    type without a JSON form, and ``ResultMismatch`` if the schema lacks members of the type.
    """

    def __init__(self, kind: Any, agent: str, offered: Mapping[str, Any] | None = None) -> None:
        self.agent = agent
        self._type = _value_type(kind)
        if offered is not None and (problems := conflicts(self._type.schema, offered)):
            raise self._mismatch(Mismatch(problems))

    @classmethod
    def of_skill(cls, kind: Any, card: AgentCard, skill: str | None) -> Self:
        """Return the type of the result of a skill; the only skill of a card needs no id."""
        skills = [each.id for each in card.skills]
        found = schemas_on(card).get(skill or (skills[0] if len(skills) == 1 else ""))
        return cls(kind, card.name, None if found is None else found.output)

    @property
    def name(self) -> str:
        """The type in an author's notation."""
        return self._type.name

    def read(self, parts: Sequence[Part], text: str) -> Any:
        """Return the result in the parts of an answer. Raises ``ResultMismatch``."""
        values = [part.data for part in parts if part.has_data]
        try:
            if values:
                return self._type.read(values[0] if len(values) == 1 else values)
            return read_text(self._type, text)
        except Mismatch as mismatch:
            raise self._mismatch(mismatch) from None

    def _mismatch(self, mismatch: Mismatch) -> ResultMismatch:
        return ResultMismatch(
            f"the result of {self.agent} is not {self.name}: {mismatch}", fields=mismatch.fields
        )


_cached = lru_cache(maxsize=256)(ValueType)


def _value_type(kind: Any) -> ValueType:
    try:
        hash(kind)
    except TypeError:
        return ValueType(kind)
    return _cached(kind)


class Answer(Generic[T_co]):
    """The answer of an agent: a direct message, or a task that ended or waits for its caller.

    Both have the same members. ``task`` and ``message`` are the answer as the specification has
    it. A direct message counts as COMPLETED.
    """

    __slots__ = ("_agent", "_reply", "_result", "_value")

    def __init__(
        self, reply: Task | Message | None, *, agent: str = "", result: ReturnType | None = None
    ) -> None:
        self._reply = reply
        self._agent = agent or (result.agent if result is not None else "")
        self._result = result
        self._value: Any = UNSET
        if result is not None and self.ok:
            self._value = result.read(self._result_parts, self.text)

    def _take(self, other: Answer[Any]) -> None:
        """Become another answer, with its result."""
        self._reply, self._result, self._value = other._reply, other._result, other._value

    # -- the result ----------------------------------------------------------------------------

    @property
    def ok(self) -> bool:
        """True if the agent answered: with a direct message, or a task that completed."""
        return self.state is TaskState.COMPLETED

    @property
    def state(self) -> TaskState:
        """The state of the task; COMPLETED for a direct message."""
        return self.status.state

    @property
    def text(self) -> str:
        """The text of the answer: of its artifacts, or of its message if there are none."""
        return "" if self._reply is None else self._reply.text

    @property
    def data(self) -> T_co:
        """The structured result.

        With ``returns`` it is a value of that type. Raises ``ResultMissing`` if the agent asks or
        failed instead. Without ``returns`` it is the JSON of the only data part, a list if there
        are several, ``None`` if there is none.
        """
        if self._value is not UNSET:
            return cast("T_co", self._value)
        if self._result is not None:
            raise ResultMissing(f"there is no {self._result.name}: {self._outline}", answer=self)
        values = self._json
        return cast("T_co", None if not values else values[0] if len(values) == 1 else values)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the answer: of its artifacts, or of its message if there are none."""
        found = tuple([part for artifact in self.artifacts for part in artifact.parts])
        message = None if found else self.message
        return found if message is None else message.parts

    @property
    def _result_parts(self) -> tuple[Part, ...]:
        """The parts, without the schema of a question."""
        return () if self.state.is_interrupted and not self.artifacts else self.parts

    @property
    def _json(self) -> list[Any]:
        return [part.data for part in self._result_parts if part.has_data]

    @property
    def files(self) -> tuple[Part, ...]:
        """The files of the artifacts and the message, for ``RemoteAgent.read`` and ``download``."""
        message = () if self.message is None or not self.artifacts else self.message.parts
        return tuple([part for part in (*self.parts, *message) if part.is_file])

    # -- what the agent wants ------------------------------------------------------------------

    @property
    def question(self) -> Question | None:
        """The question of a task in INPUT_REQUIRED, else ``None``.

        Send the answer to it: ``await agent.send("Lisbon", task=answer)``. Its ``schema`` is empty
        if the agent gave none.
        """
        if self.state is not TaskState.INPUT_REQUIRED:
            return None
        asked = self.message
        found = None if asked is None else question(asked)
        return found or Question("" if asked is None else asked.text, {})

    @property
    def auth_request(self) -> AuthRequest | None:
        """The request for a credential of a task in AUTH_REQUIRED, else ``None``.

        ``RemoteAgent.authorize`` sends the credential. A request with neither ``callback`` nor
        ``authorization_url`` takes a message.
        """
        if self.task is None or self.state is not TaskState.AUTH_REQUIRED:
            return None
        text = "" if self.message is None else self.message.text
        return auth_request(self.task) or AuthRequest(id="", text=text)

    # -- the answer as the specification has it ------------------------------------------------

    @property
    def task(self) -> Task | None:
        """The task, ``None`` for a direct message."""
        return self._reply if isinstance(self._reply, Task) else None

    @property
    def message(self) -> Message | None:
        """The direct message, the message of the task's status, or its final message."""
        if isinstance(self._reply, Task):
            return self._reply.status.message or self._reply.final_message
        return self._reply

    @property
    def reply(self) -> Task | Message:
        """The task or the direct message, as received.

        Raises ``ResultMissing`` for the outcome of a part without an answer.
        """
        if self._reply is None:
            raise ResultMissing(f"there is no answer of {self._agent}", answer=self)
        return self._reply

    @property
    def id(self) -> str:
        """The id of the task, empty for a direct message."""
        return "" if self.task is None else self.task.id

    @property
    def context_id(self) -> str:
        """The id of the context."""
        return "" if self._reply is None else self._reply.context_id

    @property
    def status(self) -> TaskStatus:
        """The status of the task; COMPLETED with the message for a direct message."""
        if isinstance(self._reply, Task):
            return self._reply.status
        state = TaskState.FAILED if self._reply is None else TaskState.COMPLETED
        return TaskStatus(state=state, message=self._reply)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts of the task, none for a direct message."""
        return () if self.task is None else self.task.artifacts

    @property
    def history(self) -> tuple[Message, ...]:
        """The history of the task, empty for a direct message."""
        return () if self.task is None else self.task.history

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The metadata of the task or the direct message."""
        return None if self._reply is None else self._reply.metadata

    # -- other ---------------------------------------------------------------------------------

    @property
    def _outline(self) -> str:
        """A sentence about the answer for errors and logs: agent, task, state and text."""
        agent, text = self._agent or "the agent", self.text[:500]
        if self.task is None:
            return f"{agent} answered {text!r}"
        said = f": {text}" if text else ""
        return f"the task {self.id} of {agent} {_OUTLINES.get(self.state, 'runs')}{said}"

    def required(self) -> Self:
        """Return this answer if the agent answered.

        Raises ``RemoteTaskFailed`` for a task that ended without success, and ``ResultMissing`` for
        a task that asks or still runs.
        """
        if self.ok:
            return self
        if self.task is not None and self.state.is_terminal:
            raise RemoteTaskFailed(self._outline, task=self.task)
        raise ResultMissing(f"there is no result: {self._outline}", answer=self)

    def __str__(self) -> str:
        """Return the text, or the JSON of the data if there is no text."""
        values = self._json
        if self.text or not values:
            return self.text
        return encode(values[0] if len(values) == 1 else values).decode()

    def __repr__(self) -> str:
        task = f", task={self.id!r}" if self.id else ""
        return f"{type(self).__name__}({self.state.name}, {self.text[:80]!r}{task})"

    def __eq__(self, other: object) -> bool:
        """Compare the task or message, also with a bare one."""
        return self._reply == (other._reply if isinstance(other, Answer) else other)

    __hash__ = object.__hash__


_OUTLINES = {
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "was canceled",
    TaskState.REJECTED: "was rejected",
    TaskState.INPUT_REQUIRED: "asks",
    TaskState.AUTH_REQUIRED: "asks for a credential",
}
