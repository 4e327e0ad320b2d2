"""The metrics of a server: what they count, who reads them, and that they stay few."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import parley
from parley import Agent, Turn
from parley.client.errors import StreamCut
from parley.engine.agent_options import Execution
from parley.model.errors import A2AError
from parley.model.service import Caller
from parley.observe.metrics import INSTRUMENTS
from parley.server.restrictions import InsideGate
from parley.server.run import serving
from parley.server.settings import GrpcOptions, Settings
from parley.store.memory.store import MemoryTaskStore
from tests.kit.http import ask, call, post
from tests.kit.servers import BINDINGS, WAYS
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import webhook
from tests.observe.spans import Spans

pytestmark = pytest.mark.anyio

COUNTED = Settings(metrics=True)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def samples(url: str) -> Samples:
    answer = await ask(url, "GET", "/metrics")
    assert answer.status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels."""
    return sum(
        amount
        for (each, own), amount in found.items()
        if each == name and labels.items() <= dict(own).items()
    )


def echo() -> Agent:
    agent = Agent("Echo")

    @agent.skill
    async def say(text: str) -> str:
        return text

    @agent.skill
    async def fail(text: str) -> str:
        raise RuntimeError(text)

    return agent


async def test_requests_are_counted_by_operation_and_way_and_the_rest_as_others() -> None:
    app = parley.asgi(echo(), settings=COUNTED)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        for binding, version in WAYS:
            async with parley.connect(url, binding=binding, version=version) as remote:
                await remote.send("hello", skill="say")
                with pytest.raises(A2AError):
                    await remote.get("no-such-task")
        await ask(url, "POST", "/", b"{", {"Content-Type": "application/json"})
        found = await samples(url)
    name = "rpc_server_call_duration_seconds_count"
    for system in ("jsonrpc", "http_json", "grpc"):
        sent = {"rpc_system_name": system, "rpc_method": "SendMessage", "error_type": ""}
        assert value(found, name, **sent) == 2, system
        asked = {"rpc_system_name": system, "rpc_method": "GetTask"}
        assert value(found, name, error_type="TaskNotFoundError", **asked) == 2, system
    assert value(found, name, rpc_method="_OTHER", error_type="JSONParseError") == 1
    assert value(found, "parley_turn_duration_seconds_count", outcome="replied", skill="say") == 6


async def test_the_metrics_of_many_callers_contexts_and_skills_are_as_few_as_of_one() -> None:
    names = iter(range(1000))

    def caller(scope: Any) -> Caller:
        return Caller(id=f"planted-caller-{next(names)}")

    sizes, texts = [], ""
    async with serving(parley.asgi(echo(), settings=COUNTED, caller=caller)) as url:
        for _ in range(2):
            async with parley.connect(url) as remote:
                for n in range(20):
                    await remote.send("planted-text", context_id=f"planted-context-{n}")
                    await post(url, call(f"planted-{n}", {}))
            answer = await ask(url, "GET", "/metrics")
            texts += answer.body.decode()
            sizes.append(answer.body.count(b"\n"))
    assert sizes[0] == sizes[1]
    assert "planted" not in texts


async def test_running_and_waiting_turns_the_age_of_the_queue_and_recoveries() -> None:
    agent = Agent("Narrow", execution=Execution(max_running=1))
    may_end = asyncio.Event()

    @agent.skill(replies="task")
    async def work(text: str) -> str:
        await may_end.wait()
        return text

    async with serving(parley.asgi(agent, settings=COUNTED)) as url, parley.connect(url) as remote:
        tasks = [await remote.send(f"{n}", return_immediately=True) for n in range(3)]
        await let_time_pass(0.02)  # the age has a resolution of milliseconds
        found = await samples(url)
        assert value(found, "parley_turns_running", agent="narrow") == 1
        assert value(found, "parley_turns_waiting", agent="narrow") == 2
        assert value(found, "parley_leases", agent="narrow") == 1
        assert 0.02 <= value(found, "parley_queue_age_seconds", agent="narrow") < 60
        may_end.set()
        for task in tasks:
            await remote.wait(task)
        found = await samples(url)
    assert value(found, "parley_queue_age_seconds") == value(found, "parley_turns_waiting") == 0
    ended = {"outcome": "completed", "agent": "narrow"}
    assert value(found, "parley_turn_duration_seconds_count", **ended) == 3
    assert value(found, "parley_turn_recoveries_total") == 0


async def test_a_turn_that_is_begun_again_is_a_recovery() -> None:
    store = MemoryTaskStore()
    agent, begun, may_end = Agent("Again"), asyncio.Event(), asyncio.Event()

    @agent.skill(replies="task")
    async def work(text: str) -> str:
        begun.set()
        await may_end.wait()
        return text

    app = parley.asgi(agent, store=store, settings=COUNTED, drain=0)
    async with serving(app) as url, parley.connect(url) as remote:
        task = await remote.send("hello", return_immediately=True)
        await begun.wait()
    app = parley.asgi(agent, store=store, settings=COUNTED)
    may_end.set()
    async with serving(app) as url, parley.connect(url) as remote:
        await remote.wait(task)
        found = await samples(url)
    assert value(found, "parley_turn_recoveries_total", agent="again") == 1
    outcomes = {"released": 1.0, "completed": 1.0}
    for outcome, count in outcomes.items():
        assert value(found, "parley_turn_duration_seconds_count", outcome=outcome) == count


async def test_streams_commits_webhooks_tokens_and_refused_addresses(tmp_path: Any) -> None:
    agent, may_end = Agent("Busy"), asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> None:
        async with turn.stream("out") as out:
            await out.write("one")
            await may_end.wait()
        usage = parley.extensions.Usage.says(parley.extensions.Spent(tokens=812, cost=0.5))
        await turn.artifact("done", metadata=usage)

    store = f"sqlite:///{tmp_path}/tasks.db"
    options: Any = {"settings": COUNTED, "store": store, "allow_private_webhooks": True}
    async with (
        webhook() as hook,
        serving(parley.asgi(agent, **options)) as url,
        parley.connect(url) as remote,
    ):
        events = remote.stream("hello", push=hook.url)
        await anext(events)
        found = await samples(url)
        assert value(found, "parley_readers") == 1
        may_end.set()
        async for _ in events:
            pass
        await hook.until_over()
        found = await samples(url)
    assert value(found, "parley_stream_first_event_duration_seconds_count") == 1
    assert value(found, "parley_reported_tokens_total", agent="busy") == 812
    assert value(found, "parley_reported_cost_total", agent="busy") == 0.5
    assert value(found, "parley_log_appends_total", db_system_name="sqlite", error_type="") > 3
    assert value(found, "db_client_operation_duration_seconds_count") > 1
    assert value(found, "parley_webhook_delivery_duration_seconds_count", outcome="delivered") > 2


async def test_a_refused_stream_ends_as_a_failure_of_its_operation() -> None:
    agent, may_end, spans = Agent("Busy"), asyncio.Event(), Spans()

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working("begun")
        await may_end.wait()

    app = parley.asgi(agent, settings=Settings(metrics=True, max_streams=1))
    async with serving(app, grpc=GrpcOptions(port=0)) as url, parley.connect(url) as remote:
        async with aclosing(remote.stream("hello")) as events:
            await anext(events)
            for binding in BINDINGS:
                async with parley.connect(url, binding=binding, retries=0) as other:
                    with pytest.raises(StreamCut, match="streams are open"):
                        await anext(other.stream("hello"))
            may_end.set()
            async for _ in events:
                pass
        found = await samples(url)
    counted = {"rpc_method": "SendStreamingMessage", "error_type": "OverloadedError"}
    name = "rpc_server_call_duration_seconds_count"
    for system in ("jsonrpc", "http_json", "grpc"):
        assert value(found, name, rpc_system_name=system, **counted) == 1, system
    assert value(found, name, rpc_method="_OTHER") == 0
    ended = [span.status.is_ok for span in spans.named("SendStreamingMessage")]
    assert sorted(ended) == [False, False, False, True]


async def test_a_failing_webhook_has_an_age(tmp_path: Any) -> None:
    agent = Agent("Hook")

    @agent.skill(replies="task")
    async def work(text: str) -> str:
        return text

    async with (
        serving(parley.asgi(agent, settings=COUNTED, allow_private_webhooks=True)) as url,
        parley.connect(url) as remote,
    ):
        await remote.send("hello", push="http://127.0.0.1:1/")

        async def fails() -> bool:
            return value(await samples(url), "parley_webhooks", state="failing") == 1

        await until(fails)
        found = await samples(url)
    assert value(found, "parley_webhooks_failing_age_seconds") > 0
    assert value(found, "parley_webhook_delivery_duration_seconds_count", outcome="failed") >= 1


async def test_a_forbidden_address_is_counted() -> None:
    async with serving(parley.asgi(echo(), settings=COUNTED)) as url:
        async with parley.connect(url) as remote:
            with pytest.raises(A2AError):
                await remote.send("hello", skill="say", push="http://10.0.0.1/")
        found = await samples(url)
    assert value(found, "parley_egress_refusals_total") >= 1


async def test_metrics_are_read_by_their_audience_alone_and_only_if_they_are_on() -> None:
    async with serving(parley.asgi(echo())) as url:
        assert (await ask(url, "GET", "/metrics")).status == 404
    async with serving(parley.asgi(echo(), settings=COUNTED)) as url:
        forwarded = {"X-Forwarded-For": "127.0.0.1"}  # a proxy shows nothing to the public
        assert (await ask(url, "GET", "/metrics", b"", forwarded)).status == 404
    gate = InsideGate()
    for address, is_visible in (("10.1.2.3", True), ("::1", True), ("8.8.8.8", False)):
        assert gate.is_visible({"client": (address, 1), "headers": []}) == is_visible
    closed = Settings(metrics=True, restrict={"metrics": ["10.0.0.0/8"]})
    async with serving(parley.asgi(echo(), settings=closed)) as url:
        assert (await ask(url, "GET", "/metrics")).status == 404
    async with serving(parley.asgi(echo(), settings=COUNTED)) as url:
        assert (await ask(url, "GET", "/metrics")).status == 200
        assert (await ask(url, "HEAD", "/metrics")).body == b""
        assert (await ask(url, "POST", "/metrics")).status == 405
    with pytest.raises(ValueError, match="serve the agent elsewhere"):
        parley.asgi({"/metrics": echo()}, settings=COUNTED)


def test_names_are_those_of_opentelemetry_and_no_label_is_an_id() -> None:
    labels = {label for each in INSTRUMENTS.values() for label in each.labels}
    assert not {label for label in labels if label.endswith(("_id", "caller", "tenant", "host"))}
    for each in INSTRUMENTS.values():
        assert each.name.islower()
        assert each.unit == "s" or each.unit.startswith("{")
