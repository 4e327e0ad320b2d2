"""The callers of a simulation: they send, stream, answer, cancel, and record their observations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from parley.engine.service.service import AgentService
from parley.model.errors import (
    A2AError,
    InternalError,
    OverloadedError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, Caller, StreamItem
from parley.model.tasks import Task, TaskState
from tests.simulation.compositions import PLACES
from tests.simulation.fleet import Connection, Cut, Fleet, Replica
from tests.simulation.loop import Process
from tests.simulation.observations import Observations, View
from tests.simulation.programs import PATIENCE, program_of
from tests.simulation.webhooks import URL


class Client:
    """A caller with its own tasks."""

    def __init__(self, fleet: Fleet, seen: Observations, number: int) -> None:
        self.fleet = fleet
        self.world = fleet.world
        self.random = fleet.world.random
        self.seen = seen
        self.process = Process(fleet.world.loop, f"client{number}")
        self.caller = Caller(id=f"caller{number}", authenticated=True)
        self.path, self.agent = self.random.choice(PLACES)
        self.known: dict[str, int] = {}
        self.finished = 0

    def context(self, **options: Any) -> CallContext:
        return CallContext(caller=self.caller, **options)

    async def run(self) -> None:
        """Perform some operations, one after another or at once."""
        count = 1 if self.path else self.world.plan.errands  # each makes tasks of three agents
        errands = [self.process.spawn(self._errand()) for _ in range(count)]
        await asyncio.gather(*errands)

    async def _errand(self) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.6 * self.world.plan.seconds))
        while not self.world.is_quiet:
            await self._converse()
            if self.random.random() < 0.5:
                break
        self.finished += 1

    # -- requests with retries -------------------------------------------------------------------

    async def _replica(self) -> Replica:
        while not (replicas := self.fleet.reachable()):
            await asyncio.sleep(0.1)
        return self.random.choice(replicas)

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0.02, 0.6))

    async def _ask(self, work: Callable[[AgentService], Awaitable[Any]]) -> tuple[Any, Replica]:
        """Send a request to some replica once. Raises ``Cut`` when the outcome is unknown."""
        replica = await self._replica()
        was_quiet = self.world.is_quiet
        timeout = PATIENCE if was_quiet else self.random.choice([0.5, 3.0, 20.0, PATIENCE])
        try:
            return await self.fleet.ask(replica, self.path, work, timeout), replica
        except TimeoutError:
            if was_quiet:
                self.world.violated("E2", "a request to", replica.name, "has no answer")
            raise Cut("took too long") from None

    def _unexpected(self, error: A2AError) -> None:
        plan = self.world.plan
        if isinstance(error, InternalError) and (plan.turn_timeout or plan.task_timeout):
            return
        self.world.violated("errors", f"{type(error).__name__}: {error}")

    # -- one conversation ----------------------------------------------------------------------

    async def _converse(self) -> None:
        skill = self.random.choice(["run", "run", "task", "task", "reply"])
        if self.path:
            skill = ""  # a composition has one
        program = "" if skill == "reply" else program_of(self.random)
        self.world.trace("begins", skill, repr(program))
        task_id = await self._say(program, metadata={"skill": skill} if skill else None)
        sides = []
        for _ in range(50):
            if task_id is None:
                break
            if not sides:
                sides = [self.process.spawn(side) for side in self._sides(task_id, program)]
            task = await self._settled(task_id)
            if task is None or task.state.is_terminal:
                break
            if self.random.random() < 0.1:
                await self._cancel(task_id)
            else:
                await self._say(f"answer {self.random.randrange(100)}", task_id=task_id)
        await asyncio.gather(*sides)

    def _sides(self, task_id: str, program: str) -> list[Any]:
        """Return concurrent operations on a task during its conversation."""
        chance, sides = self.random.random, []
        if chance() < 0.4:
            sides.append(self._watch(task_id))
        sides += [self._interrupt(task_id) for _ in range(program.count("l") * 2)]
        if chance() < 0.2:
            sides.append(self._interrupt(task_id))
        if chance() < 0.15:
            sides.append(self._give_up(task_id))
        return sides

    async def _interrupt(self, task_id: str) -> None:
        await asyncio.sleep(self.random.uniform(0, 2))
        await self._say("by the way", task_id=task_id)

    async def _give_up(self, task_id: str) -> None:
        await asyncio.sleep(self.random.choice([0, 0.05, 0.5, 2]))
        await self._cancel(task_id)

    async def _settled(self, task_id: str) -> Task | None:
        """Return the task once it has ended or waits for us; nothing after a timeout."""
        for _ in range(12):
            task = await self._get(task_id)
            if task is not None and (task.state.is_terminal or task.state.is_interrupted):
                return task
            if self.random.random() < 0.4:
                await self._watch(task_id)
            else:
                await asyncio.sleep(self.random.uniform(0.1, 1))
        return None

    # -- messages ------------------------------------------------------------------------------

    async def _say(
        self, text: str, *, task_id: str = "", metadata: dict[str, Any] | None = None
    ) -> str | None:
        """Send a message until there is a result; return the id of its task."""
        how = self.random.choice(["wait", "wait", "stream", "stream", "immediate"])
        is_repeatable = self.random.random() < 0.5
        webhook = None
        if self.world.plan.has_webhooks and not task_id and self.random.random() < 0.5:
            webhook = TaskPushNotificationConfig(url=URL)
        extensions = frozenset({IDEMPOTENT_SEND} if is_repeatable else ())
        message = Message(
            message_id=self.world.new_id(),
            role=Role.USER,
            parts=(Part(text=text),),
            task_id=task_id,
        )
        for attempt in range(400):
            if attempt and not is_repeatable:
                message = message.__class__(
                    message_id=self.world.new_id(),
                    role=Role.USER,
                    parts=(Part(text=text),),
                    task_id=task_id,
                )
            configuration = SendMessageConfiguration(
                return_immediately=how == "immediate", task_push_notification_config=webhook
            )
            request = SendMessageRequest(
                message=message, metadata=metadata, configuration=configuration
            )
            context = self.context(extensions=extensions)
            self.seen.sent(message.message_id, is_repeatable)
            name = self.world.name("m", message.message_id)
            self.world.trace("sends", name, how, task_id and self.world.name("t", task_id))
            try:
                if how == "stream":
                    return await self._send_streaming(request, context, attempt)
                reply, replica = await self._ask(partial(_send, request, context))
            except Cut as cut:
                self.world.trace("cut", name, cut)
            except OverloadedError as error:
                self.world.trace("refused", name, error)
            except UnsupportedOperationError as error:
                if task_id and "ended" in str(error):
                    self.seen.refused_as_ended(task_id, message.message_id)
                    return task_id
                self._unexpected(error)
                return None
            except A2AError as error:
                self._unexpected(error)
                return None
            else:
                self.world.trace("reply", name, _state(reply))
                if isinstance(reply, Message):
                    self.seen.direct_reply(message.message_id, reply)
                    return None
                self._knows(reply.id)
                final = how == "wait" and not (replica.has_drained or (attempt and is_repeatable))
                self.seen.replied(message.message_id, reply, final=final)
                return reply.id
            await self._pause()
        if self.world.is_quiet:
            self.world.violated("E2", "a message is never taken", repr(text))
        return task_id or None

    def _knows(self, task_id: str, seq: int = 1) -> None:
        self.known[task_id] = max(self.known.get(task_id, 0), seq)

    async def _send_streaming(
        self, request: SendMessageRequest, context: CallContext, attempt: int
    ) -> str | None:
        message_id = request.message.message_id
        view = self.seen.view(self.process.name, request.message.task_id)

        def work(service: AgentService) -> AsyncIterator[StreamItem]:
            return service.send_streaming_message(request, context)

        try:
            ended = await self._take(work, view)
        except Cut:
            if not view.task_id or not view.position:
                raise  # it is unknown whether the server accepted the message
            ended = False
        if view.reply is not None:
            self.seen.direct_reply(message_id, view.reply)
            return None
        self._knows(view.task_id, view.position)
        if ended and not (attempt and request.message.task_id):
            self.seen.stream_ended(message_id, view)
        elif not ended:
            await self._resume(view)
        return view.task_id

    async def _take(
        self, work: Callable[[AgentService], AsyncIterator[StreamItem]], view: View
    ) -> bool:
        """Read a stream to its end. Returns whether the server ended it; raises ``Cut``."""
        replica = await self._replica()
        connection: Connection = self.fleet.stream(replica, self.path, work)
        limit = self.random.choice([1, 5, 1000, 1000, 1000])
        try:
            while True:
                was_quiet = self.world.is_quiet
                timeout = PATIENCE if was_quiet else self.random.choice([5.0, 20.0, PATIENCE])
                waits_for_us = view.is_subscription and view.is_interrupted
                timeout = 1.0 if waits_for_us else timeout
                try:
                    async with asyncio.timeout(timeout):
                        item = await connection.receive()
                except TimeoutError:
                    if was_quiet and not waits_for_us:
                        self.world.violated("E2", "a stream of", replica.name, "stands still")
                    raise Cut("nothing comes") from None
                if item is None:
                    return True
                view.take(item)
                if view.task_id:
                    self._knows(view.task_id, view.position)
                limit -= 1
                if not limit:
                    raise Cut("hung up")
                if self.random.random() < 0.02:
                    await self._pause()
        finally:
            connection.hang_up()

    async def _resume(self, view: View) -> None:
        """Resume a stream after a cut, to the end of the task or its next question."""
        view.is_subscription = True
        for _ in range(60):
            await self._pause()
            context = self.context(last_event_id=str(view.position))
            request = SubscribeToTaskRequest(id=view.task_id)
            self.world.trace("resumes", self.world.name("t", view.task_id), view.position)
            try:
                if await self._take(partial(_subscribe, request, context), view):
                    self.seen.subscription_ended(view)
                    return
            except Cut:
                if self.random.random() < 0.3 or view.is_interrupted:
                    return
            except OverloadedError:
                pass

    async def _watch(self, task_id: str) -> None:
        """Follow a task: from now on, or from its beginning."""
        view = self.seen.view(self.process.name, task_id)
        if self.random.random() < 0.5:
            view.follows = True
            await self._resume(view)
            return
        view.is_subscription = True
        request = SubscribeToTaskRequest(id=task_id)
        try:
            if await self._take(lambda s: s.subscribe_to_task(request, self.context()), view):
                self.seen.subscription_ended(view)
        except Cut:
            if view.position:
                await self._resume(view)
        except UnsupportedOperationError:
            self.seen.has_ended(task_id)
        except OverloadedError:
            pass
        except A2AError as error:
            self._unexpected(error)

    # -- the rest ------------------------------------------------------------------------------

    async def _get(self, task_id: str) -> Task | None:
        after = self.known.get(task_id, 0)
        try:
            task, _ = await self._ask(
                lambda s: s.get_task(GetTaskRequest(id=task_id), self.context())
            )
        except (Cut, OverloadedError):
            return None
        except A2AError as error:
            self._unexpected(error)
            return None
        self.seen.got(task, after)
        return task

    async def _cancel(self, task_id: str) -> None:
        self.world.trace("cancels", self.world.name("t", task_id))
        request = CancelTaskRequest(id=task_id)
        for _ in range(40):
            try:
                task, _ = await self._ask(lambda s: s.cancel_task(request, self.context()))
            except (Cut, OverloadedError) as error:
                self.world.trace("not canceled", error)
                await self._pause()
                continue
            except TaskNotCancelableError:
                self.seen.has_ended(task_id, canceled=False)
            except A2AError as error:
                self._unexpected(error)
            else:
                if task.state is not TaskState.CANCELED:
                    self.world.violated("E4", "CancelTask answers", task.state.value)
                self.seen.has_ended(task_id, canceled=True)
            return

    async def look_at_all(self, replica: Replica) -> None:
        """Read all of the caller's tasks, at one replica, when no work is left."""
        tasks: list[Task] = []
        token = ""
        while True:
            request = ListTasksRequest(page_size=3, page_token=token, include_artifacts=True)
            context = self.context()
            asked = partial(_list, request, context)
            page = await self.fleet.ask(replica, self.path, asked, PATIENCE)
            tasks.extend(page.tasks)
            token = page.next_page_token
            if not token:
                break
        self.seen.listed(self.agent, self.caller.id, tasks, list(self.known))


def _state(reply: Task | Message) -> str:
    return reply.state.value if isinstance(reply, Task) else "a message"


def _send(request: SendMessageRequest, context: CallContext, service: AgentService) -> Any:
    return service.send_message(request, context)


def _subscribe(request: SubscribeToTaskRequest, context: CallContext, service: AgentService) -> Any:
    return service.subscribe_to_task(request, context)


def _list(request: ListTasksRequest, context: CallContext, service: AgentService) -> Any:
    return service.list_tasks(request, context)
