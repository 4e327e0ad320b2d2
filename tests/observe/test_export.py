"""Spans that real servers send by OTLP: one trace over processes and kills, and no secrets."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import parley
from parley import TaskState
from parley.model.operations import TaskPushNotificationConfig
from parley.observe import export
from parley.observe.export import collector_of
from parley.observe.metrics_export import MetricsSender
from tests.kit.processes import Running, free_port
from tests.kit.waiting import until
from tests.kit.webhooks import webhook
from tests.observe.spans import Collector, Spans, collecting, values_of

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "20", "PYTHONPATH": ":".join(sys.path)}


def serving_chain(
    part: str, folder: Path, store: str, collector: Collector, rest: str = ""
) -> tuple[Running, str]:
    port = free_port()
    arguments = [str(HERE / "chain.py"), part, str(port), store, collector.url, rest]
    running = Running(arguments, folder, command=(sys.executable,), **SOON)
    return running, f"http://127.0.0.1:{port}"


async def test_four_agents_and_a_kill_make_one_trace(postgres_url: str, tmp_path: Path) -> None:
    program = Spans().tracer.start_as_current_span("program")
    with collecting() as collector, program as span:
        rest, rest_url = serving_chain("rest", tmp_path, "memory:", collector)
        first, first_url = serving_chain("front", tmp_path, postgres_url, collector, rest_url)
        second, second_url = serving_chain("front", tmp_path, postgres_url, collector, rest_url)
        with rest, first, second:
            for running in (rest, first, second):
                running.until("http://127.0.0.1")
            async with parley.connect(first_url) as agent:
                task = (await agent.send("hello", return_immediately=True)).task
                assert task is not None

                async def has_asked() -> bool:
                    message = (await agent.get(task.id)).status.message
                    return message is not None and message.text == "asked"

                await until(has_asked, 20)
                for name in ("SendMessage", "invoke_agent Second"):
                    await until(lambda name=name: bool(collector.named(name)), 20)  # type: ignore[misc]
            first.end(signal.SIGKILL)
            async with parley.connect(second_url) as agent:
                assert (await agent.wait(task.id, timeout=60)).text == "hello"
            second.end(signal.SIGTERM)
            rest.end(signal.SIGTERM)
        found = collector.spans
    by_id = {each.span_id: each for each in found}
    assert {each.trace_id for each in found} == {f"{span.get_span_context().trace_id:032x}"}
    [again] = collector.named("invoke_agent front")
    assert again.attributes["parley.attempt"] == 2
    assert by_id[again.parent_id].name == "SendMessage"
    assert by_id[again.parent_id].resource != again.resource  # received by the killed replica
    [end] = collector.named("the end")
    path = [end]
    while path[-1].parent_id in by_id:
        path.append(by_id[path[-1].parent_id])
    assert [each.name for each in path] == [
        "the end", "invoke_agent fourth", "SendStreamingMessage", "invoke_agent Fourth",
        "invoke_agent third", "invoke_agent Third", "invoke_agent second",
        "SendStreamingMessage", "invoke_agent Second",
    ]  # fmt: skip


@pytest.mark.parametrize("content", [False, True])
async def test_contents_are_sent_only_if_told_and_secrets_never(
    content: bool, tmp_path: Path
) -> None:
    port = free_port()
    arguments = ["serve", str(HERE / "secretive.py"), "--port", str(port), "--store", "memory:"]
    arguments += ["--allow-private-webhooks", *(["--trace-content"] if content else [])]
    with collecting() as collector:
        arguments += ["--otlp", collector.url.replace("//", "//me:planted-secret@")]
        with Running(arguments, tmp_path, **SOON) as running:
            running.until("http://127.0.0.1")
            url = f"http://127.0.0.1:{port}"
            async with webhook() as hook, parley.connect(url, bearer="planted-secret") as agent:
                push = TaskPushNotificationConfig(
                    url=f"{hook.url}/planted-secret", token="planted-secret"
                )
                asked = await agent.send("planted-content of a message", push=push)
                assert asked.task is not None
                id = asked.task.id
                failed = await agent.send("planted-content of an answer", task_id=id)
                assert failed.task is not None
                assert failed.task.state is TaskState.FAILED
                await hook.until_over()
            assert running.end(signal.SIGTERM) == 0
            said = running.stdout + running.stderr
        sent = b"".join(collector.bodies("traces"))
        logs, metrics = collector.logs, collector.metrics
        all_sent = b"".join(body for _, body in collector.received)
        names = {each.name for each in collector.spans}
    assert {"chat", "execute_tool look", "POST webhook", "invoke_agent secretive"} <= names
    assert b"planted-secret" not in all_sent
    assert "planted-secret" not in said
    for what in ("a message", "a tool", "the model", "an error", "an answer"):
        assert (f"planted-content of {what}".encode() in sent) == content, what
    assert b"planted-content of a step" not in sent
    [failed_turn] = [
        record for name, record in logs if name == "parley.turns" and record.severity_number == 17
    ]
    assert failed_turn.trace_id.hex() in {each.trace_id for each in collector.spans}
    assert {"task_id", "skill", "exception.stacktrace"} <= values_of(failed_turn.attributes).keys()
    [point] = [
        point
        for point in metrics["parley.turn.duration"].histogram.data_points
        if values_of(point.attributes)["outcome"] == "failed"
    ]
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert {"rpc.server.call.duration", "process.memory.usage", "parley.queue.age"} <= {*metrics}
    resource = collector.spans[0].resource
    assert resource["service.name"] == "Secretive"


def test_an_address_that_no_spans_can_go_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("collector:4318", "ftp://collector", "http://collector?key=1"):
        with pytest.raises(ValueError, match="http://collector:4318"):
            collector_of(wrong)
    assert collector_of(None) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert collector_of(None) == export.Collector("http://collector:4318", is_given=False)
    assert collector_of("none") is None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    assert collector_of(None) is None
    with pytest.raises(ValueError, match=r"\[otel\]"):
        collector_of("http://collector:4318")


async def test_a_collector_that_does_not_answer_delays_no_stop(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["serve", str(HERE / "secretive.py"), "--port", str(port), "--store", "memory:"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        arguments += ["--otlp", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        with Running(arguments, tmp_path) as running:
            running.until("http://127.0.0.1")
            async with parley.connect(f"http://127.0.0.1:{port}", bearer="planted-secret") as agent:
                await agent.send("hello")  # has spans, metrics and logs
            before = monotonic()
            assert await asyncio.to_thread(running.end, signal.SIGTERM) == 0
    # Less than one signal after another; the exporters themselves try for half a minute.
    assert monotonic() - before < 2.5 * export.FLUSH_SECONDS


@pytest.mark.parametrize(("given", "seconds"), [("500", 0.5), ("0", 60), ("1 minute", 60)])
def test_an_interval_that_is_no_number_is_named_and_not_followed(
    given: str, seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", given)
    collector = export.Collector("http://127.0.0.1:9", is_given=True)
    sender = MetricsSender(collector, export.resource_of("Agent", "1", "r"))
    assert sender.seconds == seconds
    assert (f"OTEL_METRIC_EXPORT_INTERVAL={given!r}" in caplog.text) == (seconds == 60)


PROGRAM = """
import asyncio, parley
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from parley.observe import tracing

agent = parley.Agent("Own")

@agent.skill
async def say(text: str) -> str:
    return text

async def start(**options):
    app = parley.asgi(agent, **options)
    async with app.lifespan(app):
        return tracing.tracer

own = TracerProvider()
trace.set_tracer_provider(own)
assert asyncio.run(start()) is not None
try:
    asyncio.run(start(otlp="http://127.0.0.1:9"))
except ValueError as error:
    print(error)
"""


def test_a_program_with_its_own_provider_keeps_it(tmp_path: Path) -> None:
    environment: dict[str, Any] = {**SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "has set its own provider" in done.stdout, done.stderr
