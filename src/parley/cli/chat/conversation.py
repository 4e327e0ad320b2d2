"""A conversation with an agent: messages, questions, files and tasks, until the person leaves."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import UNSET

from parley.cli.calls.agent_call import AgentCall
from parley.cli.chat.prompts import answer_to
from parley.cli.chat.terminal import Terminal
from parley.cli.output.answer import PlainAnswer, state_name
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.rendering import file_line
from parley.cli.output.text import one_line
from parley.client import ClientError, EventStream, RemoteAgent
from parley.client.authorizing import kind_of
from parley.client.errors import AuthenticationRequired
from parley.client.retry import Retry
from parley.extensions.questions import AuthRequest, auth_request, question
from parley.model.errors import A2AError, UnauthenticatedError, UnsupportedOperationError
from parley.model.parts import Message, Part
from parley.model.tasks import Task, TaskState, TaskStatus

T = TypeVar("T")
RETRY = Retry()
CREDENTIALS = {"token": "Token:", "api_key": "API key:", "basic": "USER:PASSWORD:"}

HELP = """\
/attach PATH        send a file with the next message
/save [N] [PATH]    save file N, or all, here, in a folder or under a name
/task               show the task, and follow it if it is running
/cancel             cancel the task
/new                begin another conversation
/exit               leave (Ctrl-D too); an unfinished task stays
A line that ends with \\ continues on the next one; \"\"\" begins and ends a longer text.
Ctrl-C stops an answer. // begins a message with a slash."""


class Leave(Exception):
    """The person leaves the conversation."""


class Interrupted(Exception):
    """Ctrl-C ended a call."""


class Command(Exception):
    """A command was typed instead of an answer."""


class ChatSession:
    """A conversation, in the terminal or line by line in a pipe.

    ``view`` makes what shows an answer, ``login`` logs in to the agent. ``status`` is the exit
    status of the first failure in a pipe.
    """

    def __init__(
        self,
        call: AgentCall,
        terminal: Terminal,
        view: Callable[[Task | None, list[Part]], PlainAnswer],
        login: Callable[[AgentCall], Awaitable[None]],
    ) -> None:
        self.status = 0
        self._call = call
        self._terminal = terminal
        self._view = view
        self._login = login
        self._context_id = call.settings.context_id or ""
        self._task: Task | None = None
        self._attached: list[Path] = []
        self._files: list[Part] = []
        self._seq: int | None = None  # of the last event of the task
        self._typed: Any = UNSET  # the last answer to a typed question
        self._connection = AsyncExitStack()
        self._agent: RemoteAgent

    async def run(self) -> int:
        """Talk until the end; return the exit status."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            async with self._connection:
                if not await self._tried(self._begin):
                    return self.status
                while await self._tried(self._take_turn, is_open=True):
                    pass
                self._part()
        finally:
            signal.signal(signal.SIGINT, before)
        return self.status

    async def _tried(self, work: Callable[[], Awaitable[None]], *, is_open: bool = False) -> bool:
        """Do ``work``; return false if the conversation ends."""
        try:
            try:
                await work()
            except (AuthenticationRequired, UnauthenticatedError) as error:
                if not (self._terminal.is_terminal and self._agrees_to_log_in(error)):
                    raise
                await self._login(self._call)
                await self._connect()
                await (work() if not is_open else self._repeat())
        except (EOFError, Leave):
            return False
        except KeyboardInterrupt:
            waits = self._task is not None and not self._task.state.is_terminal
            self._say("Ctrl-D leaves" + (", /cancel cancels the task" if waits else ""))
        except Interrupted:
            self._say("stopped")
        except Command as typed:
            return await self._tried(partial(self._command, str(typed)), is_open=True)
        except (A2AError, ClientError) as error:
            return self._failed(self._call.failure(error)) and is_open
        except CommandFailure as failure:
            return self._failed(failure) and is_open
        except (OSError, ValueError) as error:
            return self._failed(UsageFailure(str(error))) and is_open
        return True

    def _failed(self, failure: CommandFailure) -> bool:
        self._call.output.failure(failure)
        if not self._terminal.is_terminal or not hasattr(self, "_agent"):
            self.status = self.status or failure.exit_status
        return True

    def _say(self, text: str) -> None:
        self._view(None, self._files).note(text)

    def _line(self, text: str) -> None:
        self._view(None, self._files).line(text)

    async def _run(self, work: Awaitable[T]) -> T:
        """Await ``work``, which Ctrl-C cancels. Raises ``Interrupted``."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop(*_: object) -> None:
            loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, stop)
        try:
            return await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            raise Interrupted from None
        finally:
            signal.signal(signal.SIGINT, before)

    # -- begin and end -------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._connect()
        card = self._agent.card
        if self._terminal.is_terminal:
            self._say(f"{card.name} {card.version}: {one_line(card.description)}")
            examples = [example for skill in card.skills for example in skill.examples]
            if examples:
                self._say(f"for example: {one_line(examples[0])}")
            self._say("/help shows the commands, Ctrl-D leaves")
        if task_id := self._call.settings.task_id:
            task = await self._run(self._agent.get(task_id))
            if not (task.state.is_terminal or task.state.is_interrupted):
                return await self._follow(self._agent.subscribe(task_id))
            self._set(task)
            with self._view(None, self._files) as shown:
                shown.event(task)

    async def _connect(self) -> None:
        await self._connection.aclose()
        opened = self._call.agent(retries=RETRY)
        self._agent = await self._connection.enter_async_context(opened)

    def _agrees_to_log_in(self, error: Exception) -> bool:
        said = str(error).partition(": connect(...")[0]  # the rest is for programs
        self._say(f"the agent requires a login: {said}")
        return self._terminal.line("Log in now? Y/n").strip().lower() in ("", "y", "yes")

    def _part(self) -> None:
        """Print the command that continues an unfinished task."""
        task = self._task
        is_served = isinstance(self._call.reference, str)  # an agent's file ends with this process
        if is_served and task is not None and not task.state.is_terminal:
            words = ("--task-id", task.id)
            self._say(f"the task is {state_name(task.state)}; continue it with:")
            self._line(self._call.command("chat", *words))

    # -- one turn ------------------------------------------------------------------------------

    async def _take_turn(self) -> None:
        task = self._task
        if task is not None and self._terminal.is_terminal:
            if task.state is TaskState.AUTH_REQUIRED and (request := auth_request(task)):
                return await self._authorize(task, request)
            if (asked := question(task)) is not None:
                self._typed = answer_to(asked, self._read, self._line, self._typed)
                return await self._send(data=self._typed)
        text = self._terminal.message()
        request = auth_request(task) if task is not None and text[:1] != "/" else None
        if task is not None and request is not None and not request.authorization_url:
            return await self._give(task, request, text)
        if text.startswith("/") and not text.startswith("//"):
            await self._command(text)
        elif text.strip() or self._attached:
            await self._send(text[1:] if text.startswith("//") else text)

    def _read(self, prompt: str) -> str:
        typed = self._terminal.line(prompt)
        if typed.startswith("/") and not typed.startswith("//"):
            raise Command(typed)
        return typed

    def _agrees(self, text: str) -> bool:
        return self._read(f"{text} y/N").strip().lower() in ("y", "yes")

    async def _send(self, text: str | None = None, **options: Any) -> None:
        await asyncio.sleep(0.01)  # the loop has waited: closed connections are noticed now
        settings = self._call.settings
        files, self._attached = self._attached, []
        self._sent: dict[str, Any] = {"message": text or None, "files": files, **options}
        if self._task is None:
            options["context_id"] = self._context_id or None
        stream = self._agent.stream(
            text or None, files=files, task=self._task, skill=settings.skill, **options
        )
        await self._follow(stream)

    async def _repeat(self) -> None:
        """Send the last message again, after a login."""
        if sent := getattr(self, "_sent", None):
            self._attached = sent.pop("files")
            await self._send(sent.pop("message"), **sent)

    async def _follow(self, stream: EventStream, asked: Task | None = None) -> None:
        """Show the events of a turn until the task is settled, or the person stops it.

        ``asked`` is the task whose state is over when its status changes: it has got a credential.
        """
        before = self._task
        try:
            with self._view(before, self._files) as shown:
                await self._run(self._read_stream(stream, shown, asked))
        except Interrupted:
            return await self._stop(stream)
        except UnsupportedOperationError:
            if asked is None:
                raise
            task = await self._run(self._agent.get(asked.id))  # it has ended meanwhile
            with self._view(before, self._files) as shown:
                shown.event(task)
        finally:
            self._call.task_id = stream.task_id or self._call.task_id
            self._context_id = stream.context_id or self._context_id
            self._seq = stream.seq
            if stream.task_id and (before is None or before.id != stream.task_id):
                status = TaskStatus(state=stream.state or TaskState.WORKING)
                context_id = self._context_id
                self._task = Task(id=stream.task_id, context_id=context_id, status=status)
        if stream.task_id:
            self._set(await self._run(self._agent.get(stream.task_id)))

    async def _read_stream(
        self, stream: EventStream, shown: PlainAnswer, asked: Task | None
    ) -> None:
        is_cut = False

        def cut() -> None:
            nonlocal is_cut
            if not is_cut:
                after = "" if stream.seq is None else f" after event {stream.seq}"
                shown.note(f"connection lost, resuming{after}")
            is_cut = True

        stream.on_cut(cut)
        async with stream:
            async for event in stream:
                if is_cut:
                    shown.note("resumed")
                    is_cut = False
                status = getattr(event, "status", None)
                if asked is not None and status is not None:
                    asked = asked if status == asked.status else None
                if asked is None:
                    shown.event(event)
                if isinstance(event, Message):
                    self._task, self._context_id = None, event.context_id or self._context_id
                if stream.is_settled and asked is None:
                    return

    async def _stop(self, stream: EventStream) -> None:
        """Ask what becomes of the task after Ctrl-C."""
        if not stream.task_id:
            self._say("stopped before the agent named its task")
            return
        try:
            task = await self._run(self._agent.get(stream.task_id))
            self._set(task)
            if task.state.is_terminal:
                return
            if not self._terminal.is_terminal:
                raise Leave
            asked = "Cancel the task (c), leave it running (l), or keep watching (Enter)?"
            chosen = self._terminal.line(asked).strip().lower()[:1]
        except (KeyboardInterrupt, Interrupted):  # a second Ctrl-C
            raise Leave from None
        if chosen == "c":
            await self._cancel()
        elif chosen == "l":
            self._say("it is running; /task follows it")
        else:
            await self._follow(self._agent.subscribe(task.id, after=stream.seq))

    def _set(self, task: Task) -> None:
        if self._task is None or self._task.id != task.id:
            self._seq = None if self._call.task_id != task.id else self._seq
        self._task, self._context_id = task, task.context_id
        self._call.task_id = task.id
        if question(task) is None:
            self._typed = UNSET

    # -- credentials in a task -----------------------------------------------------------------

    async def _authorize(self, task: Task, request: AuthRequest) -> None:
        if not request.authorization_url:
            typed = self._terminal.secret(CREDENTIALS[kind_of(request)])
            if typed.startswith("/"):
                raise Command(typed)
            return await self._give(task, request, typed)
        url = request.authorization_url
        self._say(f"log in at {url}")
        is_page = urlsplit(url).scheme in ("http", "https")
        if is_page and self._agrees("Open it in the browser?"):
            webbrowser.open(url)
        self._say("waiting for the login; Ctrl-C stops waiting")
        await self._follow(self._agent.subscribe(task.id, after=self._seq), task)

    async def _give(self, task: Task, request: AuthRequest, typed: str) -> None:
        user, colon, password = typed.strip().partition(":")
        if not typed.strip() or (kind_of(request) == "basic" and not colon):
            raise UsageFailure("the credential is empty, or has no colon after the user")
        given = (user, password) if kind_of(request) == "basic" else typed.strip()
        await self._run(self._agent.authorize(task, given, return_immediately=True))
        await self._follow(self._agent.subscribe(task.id, after=self._seq), task)

    # -- commands ------------------------------------------------------------------------------

    async def _command(self, text: str) -> None:
        name, *words = shlex.split(text) if os.name != "nt" else text.split()
        match name:
            case "/help":
                for line in HELP.splitlines():
                    self._line(line)
            case "/attach" if words:
                self._attach(" ".join(words))
            case "/save":
                await self._save(words)
            case "/task":
                await self._show_task()
            case "/cancel":
                await self._cancel()
            case "/new":
                self._part()
                self._task, self._context_id, self._typed = None, "", UNSET
                self._say("another conversation begins")
            case "/exit" | "/quit":
                raise Leave
            case _:
                raise UsageFailure(
                    f"{text} is no command", hint="/help shows the commands; // begins a message"
                )

    def _attach(self, name: str) -> None:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageFailure(f"there is no file {path}")
        self._attached.append(path)
        self._say(f"{_with_size(path)} goes with the next message")

    def _place(self, words: list[str], *, is_folder: bool) -> Path:
        """Return the folder or the new file to save in."""
        place = Path(" ".join(words) or ".").expanduser()
        if words and (is_folder or words[-1].endswith(("/", os.sep))):
            place.mkdir(parents=True, exist_ok=True)
        if place.is_file() and not (
            self._terminal.is_terminal and self._agrees(f"Replace {place}?")
        ):
            raise UsageFailure(f"{place} exists, and is kept")
        return place

    async def _save(self, words: list[str]) -> None:
        number = int(words.pop(0)) if words and words[0].isdecimal() else 0
        if number > len(self._files) or not self._files:
            raise UsageFailure(f"there are {len(self._files)} files in the answers")
        chosen = self._files[number - 1 : number] if number else self._files
        place = self._place(words, is_folder=len(chosen) > 1)
        for part in chosen:
            saved = await self._run(self._agent.download(part, place))
            self._say(f"saved {_with_size(saved)}")

    async def _cancel(self) -> None:
        task = self._task
        if task is None or task.state.is_terminal:
            raise UsageFailure("there is no task to cancel")
        self._set(await self._run(self._agent.cancel(task.id)))
        self._say(f"the task is {state_name(self._task.state if self._task else task.state)}")

    async def _show_task(self) -> None:
        if self._task is None:
            raise UsageFailure("there is no task yet")
        task = await self._run(self._agent.get(self._task.id))
        self._set(task)
        self._say(f"task {task.id}: {state_name(task.state)}")
        for artifact in task.artifacts:
            name = artifact.name or artifact.artifact_id
            files = [file_line(part, name) for part in artifact.parts if part.is_file]
            self._say(f"{name}: {', '.join(files) or f'{len(artifact.text):,} characters'}")
        if task.state.is_terminal:
            return
        if task.state.is_interrupted:
            if message := task.status.message:
                with self._view(None, self._files) as shown:
                    shown.event(message)
            return
        await self._follow(self._agent.subscribe(task.id))


def _with_size(path: Path) -> str:
    return f"{path} ({path.stat().st_size:,} bytes)"
