"""A conformance run against a client: the client plays scenarios, and its behaviour is judged."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec

from parley.client.bindings.binding import is_supported
from parley.conformance.client_forms import CONTEXT_ID, TASK_ID
from parley.conformance.client_scenarios import SAID, Action, ClientScenario
from parley.conformance.client_server import (
    MAX_REQUESTS,
    ClientOutcome,
    ReceivedCall,
    Visit,
    scripted_server,
)
from parley.conformance.client_table import SCENARIOS
from parley.conformance.report import ConformanceReport
from parley.conformance.verdicts import (
    ConformanceViolation,
    NotApplicable,
    Outcome,
    Verdict,
    chosen,
)
from parley.model.distribution import install_command
from parley.model.operations import Operation
from parley.model.parts import Artifact, Part
from parley.model.service import StreamItem
from parley.model.struct import encode
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.wire import versions

_IDS: dict[str, Any] = {"task_id": TASK_ID, "context_id": CONTEXT_ID}


@asynccontextmanager
async def grpc_agent(visit: Visit, said: str, version: str) -> AsyncIterator[None]:
    """Serve an agent over gRPC for a visit, at ``visit.grpc``. Needs the extra ``grpc``.

    Received requests are kept in the form of 1.0, for every ``version``.
    """
    import grpc

    codec = versions.dialect(version).grpc()
    task = Task(
        id=TASK_ID,
        context_id=CONTEXT_ID,
        status=TaskStatus(state=TaskState.COMPLETED),
        artifacts=(Artifact(artifact_id="answer", parts=(Part(text=said),)),),
    )
    story: list[Event] = [
        Task(id=TASK_ID, context_id=CONTEXT_ID, status=TaskStatus(state=TaskState.WORKING)),
        TaskArtifactUpdateEvent(**_IDS, artifact=task.artifacts[0]),
        TaskStatusUpdateEvent(**_IDS, status=task.status),
    ]

    def handler(rpc: str, operation: Operation) -> Any:
        def heard(data: bytes, context: Any) -> None:
            headers = {key: str(value) for key, value in context.invocation_metadata()}
            request = ReceivedCall(
                method="GRPC",
                path=f"/{codec.service}/{rpc}",
                headers=headers,
                body=encode(codec.read_request(operation, data)),
                operation=operation.name,
                at=asyncio.get_running_loop().time(),
            )
            if len(visit.requests) < MAX_REQUESTS:
                visit.requests.append(request)

        async def answer(data: bytes, context: Any) -> bytes:
            heard(data, context)
            return codec.write_result(operation, task)

        async def stream(data: bytes, context: Any) -> AsyncIterator[bytes]:
            heard(data, context)
            for event in story:
                yield codec.write_event(StreamItem(event))

        if operation.streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(answer)

    handlers = {rpc: handler(rpc, operation) for rpc, operation in codec.methods.items()}
    service = grpc.method_handlers_generic_handler(codec.service, handlers)
    server = grpc.aio.server(handlers=(service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    visit.grpc = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        await server.stop(None)


TEXT = "Hello"
ANSWER = "Blue"
MAX_OUTPUT = 1024 * 1024

TO_DO: dict[Action, str] = {
    "send": f"send {TEXT!r}, wait for the end of the task, print the agent's text",
    "stream": f"send {TEXT!r} with streaming, print the agent's text",
    "answer": f"send {TEXT!r}, answer the agent's question with {ANSWER!r}, print its text",
    "cancel": f"send {TEXT!r} without waiting for the end of the task, and cancel the task",
}
"""The instructions for each action. A client that gets no answer must fail (exit status
1 or more).
"""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for one play: the agent's address, and an action of ``TO_DO``."""

    url: str
    action: Action
    text: str
    scenario: str


Drive = Callable[[Assignment], Awaitable[ClientOutcome]]


class CannotPlay(Exception):
    """The client under test has no way to do an action; the text says why."""


async def run_client(
    drive: Drive,
    *,
    subject: str = "under test",
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    protocol_versions: tuple[str, ...] = (),
    bindings: tuple[str, ...] = (),
    patience: float = 30.0,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> ConformanceReport:
    """Test a client: ``drive`` makes it carry out an assignment, and returns the outcome.

    ``only`` and ``skip`` choose scenarios by id or id prefix; ``protocol_versions`` and
    ``bindings`` choose them by the interface on their card. ``patience`` is the time limit of one
    play, in seconds.
    """
    scenarios = choose(only, skip, protocol_versions, bindings)
    verdicts = []
    async with _served(scenarios) as visits:
        for scenario, visit in zip(scenarios, visits, strict=True):
            verdict = await _played(scenario, visit, drive, patience)
            verdicts.append(verdict)
            if on_verdict is not None:
                on_verdict(verdict)
    return ConformanceReport(kind="client", subject=subject, verdicts=tuple(verdicts))


async def watch_client(
    ready: Callable[[list[tuple[ClientScenario, Visit]]], Awaitable[None]],
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    protocol_versions: tuple[str, ...] = (),
    bindings: tuple[str, ...] = (),
) -> ConformanceReport:
    """Serve the scenarios for a client that is run by hand, and judge its requests.

    ``ready`` receives the scenarios with their visits, and returns when the client is done. The
    output of the client is not judged.
    """
    scenarios = choose(only, skip, protocol_versions, bindings)
    async with _served(scenarios) as visits:
        pairs = list(zip(scenarios, visits, strict=True))
        await ready(pairs)
        verdicts = tuple(_judged(scenario, visit) for scenario, visit in pairs)
    return ConformanceReport(kind="client", subject="under test", verdicts=verdicts)


@asynccontextmanager
async def _served(scenarios: list[ClientScenario]) -> AsyncIterator[list[Visit]]:
    """Serve the scenarios, each at its own address."""
    async with AsyncExitStack() as stack:
        answers = [each.answer for each in scenarios]
        visits = await stack.enter_async_context(scripted_server(answers))
        for scenario, visit in zip(scenarios, visits, strict=True):
            if scenario.uses.startswith("GRPC") and is_supported("GRPC"):
                version = scenario.uses.rsplit(" ", 1)[1]
                agent = grpc_agent(visit, scenario.wants or SAID, version)
                await stack.enter_async_context(agent)
        yield visits


def choose(
    only: tuple[str, ...],
    skip: tuple[str, ...],
    protocol_versions: tuple[str, ...],
    bindings: tuple[str, ...],
) -> list[ClientScenario]:
    """Return the scenarios of a run."""
    found = []
    for each in SCENARIOS:
        binding, version = each.uses.rsplit(" ", 1)
        if protocol_versions and version not in protocol_versions:
            continue
        if bindings and binding not in bindings:
            continue
        if chosen(each.requirement.id, only, skip):
            found.append(each)
    return found


class CommandDriver:
    """Runs a command for each scenario. ``{url}``, ``{action}``, ``{text}`` and ``{scenario}`` in
    the command are replaced by the values of the assignment.

    Exit status 0 means that the client got an answer. A command without ``{action}`` can only send.
    """

    def __init__(self, command: str, *, patience: float) -> None:
        self._words = shlex.split(command)
        self._knows_actions = "{action}" in command
        self._patience = patience
        if "{url}" not in command:
            raise ValueError("the command has no {url}, so the client has no address to call")

    async def __call__(self, assignment: Assignment) -> ClientOutcome:
        """Run the command once. Raises ``CannotPlay``, ``OSError``, ``TimeoutError``."""
        if assignment.action != "send" and not self._knows_actions:
            raise CannotPlay(f"the command has no {{action}}, so it cannot {assignment.action}")
        words = []
        for word in self._words:
            for name in ("url", "action", "text", "scenario"):
                word = word.replace(f"{{{name}}}", getattr(assignment, name))
            words.append(word)
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._patience):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        output = printed[:MAX_OUTPUT].decode("utf-8", "replace")
        return ClientOutcome(succeeded=process.returncode == 0, output=output)


async def _played(scenario: ClientScenario, visit: Visit, drive: Drive, patience: float) -> Verdict:
    assignment = Assignment(
        url=visit.url, action=scenario.action, text=TEXT, scenario=scenario.requirement.id
    )
    if scenario.uses.startswith("GRPC") and not visit.grpc:
        reason = f"gRPC is not installed here: {install_command('grpc')}"
        return _verdict(scenario, visit, "skipped", reason)
    for _ in range(scenario.runs):
        try:
            async with asyncio.timeout(patience):
                visit.outcomes.append(await drive(assignment))
        except CannotPlay as error:
            return _verdict(scenario, visit, "skipped", str(error))
        except TimeoutError:
            return _verdict(
                scenario, visit, "failed", f"the client was not done within {patience:g} s"
            )
        except OSError as error:
            return _verdict(scenario, visit, "skipped", f"the client did not start: {error}")
    return _judged(scenario, visit)


def _judged(scenario: ClientScenario, visit: Visit) -> Verdict:
    try:
        if not visit.requests and not visit.outcomes:
            raise NotApplicable(f"the scenario was not played; it is: {TO_DO[scenario.action]}")
        for judge in scenario.judges:
            judge(visit)
        _judge_outcome(scenario, visit)
    except NotApplicable as error:
        return _verdict(scenario, visit, "skipped", str(error))
    except ConformanceViolation as error:
        return _verdict(scenario, visit, "failed", str(error))
    return _verdict(scenario, visit, "passed", "")


def _judge_outcome(scenario: ClientScenario, visit: Visit) -> None:
    """Judge the client's exit status and output, if they are known."""
    for outcome in visit.outcomes:
        if scenario.fails and outcome.succeeded:
            raise ConformanceViolation(
                "the client reported success (exit status 0) although it got no answer"
            )
        if not scenario.wants:
            continue
        if outcome.output is not None and scenario.wants not in outcome.output:
            printed = outcome.output.strip()[-200:] or "nothing"
            raise ConformanceViolation(
                f"the agent said {scenario.wants!r}, but the client printed {printed}"
            )


def _verdict(scenario: ClientScenario, visit: Visit, outcome: Outcome, reason: str) -> Verdict:
    shown = "\n".join(str(each) for each in visit.requests[-3:]) if outcome == "failed" else ""
    return Verdict(
        requirement=scenario.requirement,
        where=scenario.uses,
        outcome=outcome,
        reason=reason,
        evidence=shown,
    )
