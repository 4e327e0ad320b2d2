"""What an author's function is given: one turn of a task."""

from __future__ import annotations

import asyncio
import inspect
import logging
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

import msgspec

from parley.agent import references
from parley.agent.artifact_stream import ArtifactStream
from parley.agent.context import AgentContext, AgentContexts
from parley.engine.answer import Answer
from parley.engine.content import accepts, checked, to_parts
from parley.engine.serialization import check_metadata, kept, read
from parley.engine.turn.attempt import Attempt, Failed, Rejected
from parley.engine.turn.output_filter import active
from parley.model.parts import Artifact, Message, Part
from parley.model.references import tasks_named
from parley.model.service import Caller
from parley.model.tasks import Task, TaskState

log = logging.getLogger("parley.agent")

P = ParamSpec("P")
R = TypeVar("R")


class Turn:
    """One run of an agent's function for one message.

    The function runs from the top for every turn of a task: for the message that begins it, for
    the answer to each question, and again after a crash. ``ask`` and ``step`` return what they
    returned before, so the same code serves all three. ``message`` is always the message that
    began the task; ``latest`` is the one that this turn is about.
    """

    def __init__(self, run: Attempt, contexts: AgentContexts) -> None:
        self.run = run
        self._contexts = contexts

    @property
    def _context(self) -> AgentContext:
        return self._contexts.of(self.run.runner)

    # -- what was asked ------------------------------------------------------------------------

    @property
    def message(self) -> Message:
        """The message that began the task."""
        return self.run.request.message

    @property
    def latest(self) -> Message:
        """The newest message that a turn took: the one that this turn is about."""
        return self.run.latest

    @property
    def text(self) -> str:
        """The text of the message that began the task."""
        return self.message.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the message that began the task."""
        return self.message.parts

    @property
    def files(self) -> tuple[Part, ...]:
        """Its file parts, by bytes or by address."""
        return tuple(part for part in self.message.parts if part.is_file)

    @property
    def data(self) -> Any:
        """The value of its first data part, ``None`` without one."""
        for part in self.message.parts:
            if part.data is not msgspec.UNSET:
                return part.data
        return None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the request and of its message; the message's win."""
        return {**(self.run.request.metadata or {}), **(self.message.metadata or {})}

    @property
    def accepted_output_modes(self) -> tuple[str, ...]:
        """The media types that the caller accepts; none means any."""
        return self.run.request.accepted_output_modes

    def accepts(self, media_type: str) -> bool:
        """Whether the caller takes parts of this media type; a range (``image/*``) is one too."""
        modes = self.accepted_output_modes
        return not modes or accepts(modes, media_type)

    @property
    def skill_id(self) -> str:
        """The id of the skill that runs."""
        return self.run.request.skill.id

    @property
    def caller(self) -> Caller:
        """The caller of this turn's message: the same in every run of it, also after a restart.

        ``claims`` are those that ``Agent(keep_claims=...)`` names. A message that ``messages``
        yields changes nothing here.
        """
        return self.run.request.caller

    @property
    def tenant(self) -> str:
        """The tenant that the request named."""
        return self.run.request.tenant

    @property
    def extensions(self) -> frozenset[str]:
        """The URIs of the extensions that are in force."""
        return self.run.request.extensions

    # -- where we are --------------------------------------------------------------------------

    @property
    def task(self) -> Task | None:
        """The task as it stands, ``None`` while there is none."""
        writer = self.run.runner.writer
        return writer.fold.task if writer is not None else None

    @property
    def task_id(self) -> str:
        """The id that the task has, or will have if one is made."""
        return self.run.runner.task_id

    @property
    def context_id(self) -> str:
        """The context that the message belongs to."""
        return self.run.runner.context_id

    @property
    def number(self) -> int:
        """Which turn of the task this is, from 1."""
        return self.run.turn

    @property
    def attempt(self) -> int:
        """Which attempt at this turn this is, from 1."""
        return self.run.number

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the task and the skill. What it is told never leaves the server."""
        return logging.LoggerAdapter(
            log, {"task_id": self.task_id, "context_id": self.context_id, "skill": self.skill_id}
        )

    async def references(self) -> tuple[Task, ...]:
        """Return the tasks that the newest message refers to, as far as its caller owns them.

        What is not there, or another's, is left out. They may be at work still: see ``wait_for``.
        """
        return await self._context.tasks(tasks_named(self.latest))

    async def referenced_artifacts(self) -> tuple[Artifact, ...]:
        """Return the artifacts that parts of the newest message name in their metadata.

        The members are ``artifactId`` and, where it is not clear from the context, ``taskId``.
        What is not there, or another's, is left out.
        """
        return await references.referenced_artifacts(self._context, self.latest, self.task_id)

    async def reference(
        self,
        question: str = "Which of these do you mean?",
        *,
        where: Callable[[Task], bool] | None = None,
        describe: Callable[[Task], str] | None = None,
    ) -> Task | None:
        """Return the earlier task that the message is about, and ask the caller when in doubt.

        It is the task that the message refers to, else the only one that began in this context
        before and came to some good; ``None`` if there is none. Of several the caller chooses:
        ``question`` is asked with a list of them, as ``describe`` words each, and answered with a
        reference, a number, or words of the list. ``where`` says which tasks can be meant at all.
        """
        return await references.reference(self.run, self._context, question, where, describe)

    async def wait_for(self, task: Task | str, *, timeout: float | None = None) -> Task:
        """Return another of the caller's tasks when it has ended: this one depends on it.

        The turn stays at work meanwhile, so two tasks must not wait for each other.
        Raises ``TaskNotFoundError``, and ``TimeoutError`` after ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            return await references.wait_for(self.run, task)

    async def other_tasks(self, limit: int = 20) -> tuple[Task, ...]:
        """Return the other tasks of this context, the last updated first."""
        return await self._context.others(self.task_id, limit)

    # -- what it says --------------------------------------------------------------------------

    async def working(
        self,
        content: object = None,
        *,
        metadata: dict[str, Any] | None = None,
        substate: dict[str, Any] | None = None,
    ) -> None:
        """Say how the work goes: a status update with a message, or without.

        ``substate`` is what extensions have to say of it, by their URIs (``Extension.says``): it
        goes with the update, and into its message, where the task shows it. What an extension has
        to say that is not in force is left out.
        """
        metadata = check_metadata(metadata)
        writer = self.run.writer()
        message = None if content is None else self.run.message(content)
        said = check_metadata(active(substate, self.extensions)) if substate else None
        if said:
            metadata = {**(metadata or {}), **said}
            if message is not None:
                both = {**(message.metadata or {}), **said}
                message = msgspec.structs.replace(message, metadata=both)
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
        """Make a whole artifact and return its id.

        ``content`` is text, bytes, a path, data, a part or a list of parts. An artifact of the
        same id is replaced.
        """
        if isinstance(content, Artifact):
            artifact = checked(content)
        else:
            artifact = Artifact(
                artifact_id=artifact_id or self.run.next_artifact_id(),
                name=name or filename,
                description=description,
                parts=to_parts(content, media_type=media_type, filename=filename),
                metadata=check_metadata(metadata),
            )
        writer = self.run.write_artifact(artifact, last=True)
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
        """Return an artifact to be written chunk by chunk: ``async with turn.stream() as out``."""
        return ArtifactStream(
            self.run,
            name=name,
            description=description,
            artifact_id=artifact_id,
            media_type=media_type,
            metadata=check_metadata(metadata),
        )

    async def ask(self, question: object, *, key: str | None = None) -> Answer:
        """Ask the caller, and return the message that answers.

        The task waits as INPUT_REQUIRED and costs nothing meanwhile: the function ends here, and
        runs again from the top when the answer comes. Questions are told apart by their order, or
        by ``key``. The answer's ``replayed`` says whether an earlier run had it already.
        """
        return await self.run.ask(TaskState.INPUT_REQUIRED, question, key)

    async def require_auth(
        self, content: object, *, key: str | None = None, until: Awaitable[R] | None = None
    ) -> Answer | R:
        """Ask the caller to authorise something, and return the message that says so.

        The task waits as AUTH_REQUIRED. With ``until`` the turn stays alive and goes on with its
        result, for authorisation that arrives by another way (specification §7.6).
        """
        if until is None:
            return await self.run.ask(TaskState.AUTH_REQUIRED, content, key)
        writer = self.run.writer()
        writer.status(TaskState.AUTH_REQUIRED, self.run.message(content))
        await writer.flush()
        self.run.runner.reply()
        result = await until
        self.run.writer().status(TaskState.WORKING)
        return result

    @overload
    async def step(
        self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def step(
        self, key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    async def step(
        self,
        key: str,
        function: Callable[P, Any],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Any:
        """Do something once in the life of the task, and return its result, then and ever after.

        The result is logged before it is returned; a later run gets it from the log, the same and
        of the same type. So it is what JSON has (a dict with text for keys, a list, text, a number,
        a truth value, ``None``), or of the type that ``function`` says it returns: ``-> datetime``,
        ``-> tuple[int, str]``, ``-> Booking`` for a dataclass. A function that raises is not
        remembered. A plain function runs in a thread. A crash between the end of the function and
        its logging runs it again: make it idempotent where that matters, by ``turn.task_id`` and
        ``key`` for instance.

        Raises ``ValueError`` for a key that was used before in this turn, ``TypeError`` for a
        result that would not read back as it is: it says where, and is not remembered.
        """
        kind = _returned(function)
        recalled = self.run.step_result(key)
        if recalled is None:
            result: Any
            if inspect.iscoroutinefunction(function):
                result = await function(*args, **kwargs)
            else:
                result = await self.run.runner.in_thread(function, *args, **kwargs)
                if isinstance(result, Awaitable):
                    result = await result
            what = f"step {key!r} returned a {type(result).__qualname__}"
            data = kept(result, kind, what=what, hint=", or declare what the function returns")
            await self.run.keep_result(key, data)
            return read(data, kind)
        return read(recalled, kind)

    def reject(self, why: object) -> NoReturn:
        """End the task as REJECTED: the agent will not do this."""
        raise Rejected(str(why))

    def fail(self, why: object) -> NoReturn:
        """End the task as FAILED, with a reason that the caller may read."""
        raise Failed(str(why))

    async def messages(self) -> AsyncIterator[Message]:
        """Yield messages to this task as they arrive while the turn runs.

        Each belongs to this turn: its sender gets this turn's reply. The iterator does not end by
        itself; leave it when enough was said.
        """
        while True:
            yield await self.run.next_message()

    # -- what the context remembers ------------------------------------------------------------

    async def history(self, limit: int = 50) -> Sequence[Message]:
        """Return the last messages of this context, both sides', the oldest first.

        Raises ``RuntimeError`` unless the agent was made with ``keeps_history=True``.
        """
        return await self._context.history(limit)

    async def recall(self, key: str, default: Any = None) -> Any:
        """Return what ``remember`` kept in this context under ``key``.

        To keep a value that depends on it, use ``update``: other turns may come in between.
        """
        return await self._context.get(key, default)

    async def update(self, key: str, function: Callable[[Any], R], default: Any = None) -> R:
        """Change what this context keeps under ``key`` in one step, and return what it is then.

        ``function`` gets the value as ``recall`` returns it, else ``default``, and returns the new
        one; ``None`` removes it. Nothing comes in between, from no turn and no replica: of 30 turns
        at once that add 1, each counts. The new value is durable before this returns.

        ``function`` is a plain one, and quick: the event loop waits for it. It may be called more
        than once, when another replica was faster, and its last result counts. One that raises
        changes nothing. It must not update anything itself.

        A further run of the turn, for an answer or after a crash, updates again, as ``remember``
        does. To count once in the life of the task, make it a step:
        ``await turn.step("counted", turn.update, "count", add_one, 0)``.

        Raises ``TypeError`` as ``remember`` does, and for a coroutine function.
        """
        return await self._context.update(key, function, default)

    async def remember(self, key: str, value: Any) -> None:
        """Keep a value in this context, across tasks and restarts; ``None`` removes it.

        It is what JSON has, so that ``recall`` returns the same. Raises ``TypeError`` for anything
        else, and says where it is.
        """
        await self._context.set(key, value)


def _returned(function: Callable[..., Any]) -> Any:
    try:
        kind = typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any
    return Any if isinstance(kind, TypeVar) else kind
