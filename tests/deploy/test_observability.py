"""The dashboard, the alerts and the compose file of ``deploy/observability/``.

A real Prometheus reads a server with traffic of all kinds, and is asked every query.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import parley
from parley import Agent, Turn
from parley.engine.agent_options import Execution
from parley.model import errors
from parley.model.errors import A2AError, OverloadedError
from parley.model.service import Caller
from parley.observe import metrics, tracing
from parley.registry.app.registry import Registry
from parley.security import ApiKey
from parley.server.run import serving
from parley.server.settings import Settings
from parley.store.sqlite.store import SqliteTaskStore
from tests.deploy.files import DEPLOY, compose
from tests.kit.http import call, post
from tests.kit.processes import free_port
from tests.kit.services import prometheus
from tests.kit.waiting import let_time_pass, until
from tests.observe.spans import Spans

HERE = DEPLOY / "observability"


def read(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text("utf-8"))


def panels() -> dict[str, list[str]]:
    """Return the queries of each panel."""
    dashboard = json.loads((HERE / "dashboard.json").read_text("utf-8"))
    return {
        each["title"]: [target["expr"] for target in each["targets"]]
        for each in dashboard["panels"]
        if each["type"] != "row"
    }


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read("alerts.yaml")["groups"][0]["rules"]
    return found


def in_seconds(expression: str) -> str:
    """Return a query with the variables replaced, and windows and thresholds of a test."""
    for name, value in (("$__rate_interval", "10s"), ("$agent", ".*"), ("$instance", ".*")):
        expression = expression.replace(name, value)
    return re.sub(r"> (60|600|1)$", "> 0", re.sub(r"\[\d+m\]", "[10s]", expression))


def configuration(folder: Path, port: int) -> dict[str, Any]:
    """Return the configuration of ``deploy/``, with rules that need no patience."""
    made: dict[str, Any] = read("prometheus.yaml")
    made["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    (jobs,) = [each for each in made["scrape_configs"] if each["job_name"] == "parley"]
    del jobs["dns_sd_configs"]
    jobs["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    made["scrape_configs"] = [jobs]
    quick = [{**each, "expr": in_seconds(each["expr"]), "for": "0s"} for each in rules()]
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "p", "rules": quick}]}))
    return made


def agents() -> tuple[dict[str, Agent], asyncio.Event]:
    """Return an agent with skills for each kind of traffic, a closed one, and what ends work."""
    desk = Agent("Desk", execution=Execution(max_running=1))
    bank = Agent("Bank", security=ApiKey(keys={"0" * 64: Caller(id="ada")}))
    may_end = asyncio.Event()

    @desk.skill(default=True)
    async def say(text: str) -> str:
        return text

    @desk.skill
    async def fail(turn: Turn) -> str:
        with turn.span("look up"):
            raise RuntimeError("planted")

    @desk.skill
    async def costly(turn: Turn) -> None:
        usage = parley.extensions.Usage.says(parley.extensions.Spent(tokens=812, cost=0.5))
        await turn.artifact("done", metadata=usage)

    @desk.skill(replies="task")
    async def wait(text: str) -> str:
        await may_end.wait()
        return text

    @bank.skill
    async def pay(text: str) -> str:
        return text

    return {"/": desk, "/bank": bank}, may_end


async def traffic(url: str, hook: str, registry: str) -> None:
    """Send each kind of request again and again."""
    async with parley.connect(url) as remote:
        while True:
            await remote.send("hello", skill="say")
            with pytest.raises(A2AError):
                await remote.send("hello", push="http://10.0.0.1/")
            with pytest.raises(A2AError):
                await remote.get("no-such-task")
            await remote.send("hello", skill="fail", push=hook)
            async for _ in remote.stream("hello", skill="costly"):
                pass
            await post(url, b"{")
            await post(f"{url}/bank", call(), {"X-API-Key": "wrong"})
            await parley.find("fares", registry=registry)
            await let_time_pass(0.2)


@asynccontextmanager
async def during(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        going = group.create_task(work)
        yield
        going.cancel()


async def vain_traffic(url: str) -> None:
    """Send messages that a full disk does not take."""
    async with parley.connect(url, retries=0) as remote:
        while True:
            with pytest.raises(OverloadedError):
                await remote.send("hello" * 100_000, skill="wait")


@contextmanager
def full_disk(store: Any) -> Iterator[None]:
    """Let the file of a store grow no more."""
    writer = store._writing.batch_writer
    write = writer.write

    def writes(group: Any) -> Any:
        writer.connection.execute(f"PRAGMA max_page_count = {pages}")
        return write(group)

    pages, writer.write = 1, writes
    try:
        yield
    finally:
        pages = 1 << 30  # the next write makes room


def find(alert: str, asked: prometheus.Prometheus, records: Any, spans: Spans) -> list[str]:
    """Return the failed spans to which an alert leads, by a line of the log."""
    [labels] = [each["labels"] for each in asked.alerts() if each["labels"]["alertname"] == alert]
    line = next(
        each
        for each in records
        if getattr(each, "event", "") == "failed" and each.skill == labels["skill"]
    )
    assert line.reference
    assert "RuntimeError: planted" in "".join(traceback.format_exception(line.exc_info[1]))
    return [
        each.name
        for each in spans.all
        if f"{each.context.trace_id:032x}" == line.trace_id and not each.status.is_ok
    ]


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.service
@pytest.mark.skipif(bool(prometheus.MISSING), reason=prometheus.MISSING)
async def test_every_panel_has_a_series_and_alerts_fire_for_planted_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "current", None)
    monkeypatch.setattr(tracing, "tracer", None)
    spans, port, store = Spans(), free_port(), SqliteTaskStore(tmp_path / "tasks.db")
    options: Any = {
        "settings": Settings(metrics=True, auth_failures_per_minute=0),
        "allow_private_webhooks": ["127.0.0.0/8"],
        "drain": 0,
    }
    with prometheus.running(tmp_path, configuration(tmp_path, port)) as asked:
        empty: dict[str, str] = {}

        async def all_have_series() -> bool:
            empty.clear()
            for title, queries in panels().items():
                for query in map(in_seconds, queries):
                    if not await asyncio.to_thread(asked.query, query):
                        empty[title] = query
            return not empty

        async def fire(*wanted: str) -> None:
            async def do() -> bool:
                return {*wanted} <= await asyncio.to_thread(asked.firing)

            try:
                await until(do, 15, 0.2)
            except TimeoutError:
                pytest.fail(f"{wanted} do not all fire: {asked.firing()}")

        served, _ = agents()
        async with (
            serving(parley.asgi(served, store=store, **options), port=port) as url,
            serving(Registry("memory:").app) as registry,  # counts in the same process
        ):
            async with during(traffic(url, "http://127.0.0.1:1/", registry)):
                try:
                    await until(all_have_series, 15, 0.2)
                except TimeoutError:
                    pytest.fail(f"no series: {empty}")
                await fire(
                    "ParleyTurnsFailing", "ParleyWebhooksFailing", "ParleyCredentialsRejected"
                )
            found = find("ParleyTurnsFailing", asked, caplog.records, spans)
            assert found[:2] == ["look up", "invoke_agent desk"]
            with full_disk(store):
                async with during(vain_traffic(url)):
                    await fire("ParleyServerErrors", "ParleyStoreFailing")
            async with parley.connect(url) as remote:
                for _ in range(2):
                    await remote.send("hello", skill="wait", return_immediately=True)
            await fire("ParleyQueueOld")
        await fire("ParleyDown")
        served, may_end = agents()
        may_end.set()
        store = SqliteTaskStore(tmp_path / "tasks.db")
        async with serving(parley.asgi(served, store=store, **options), port=port):
            await fire("ParleyTurnsRecovered")
        evaluated = asked.ask("rules")["groups"][0]["rules"]
    assert [each["lastError"] for each in evaluated if each["health"] != "ok"] == []
    assert len(evaluated) == len(rules())


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.skipif(bool(prometheus.MISSING), reason=prometheus.MISSING)
def test_prometheus_takes_the_files(tmp_path: Path) -> None:
    for kind, name in (("config", "prometheus.yaml"), ("rules", "alerts.yaml")):
        done = subprocess.run(
            ["promtool", "check", kind, HERE / name], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_every_instrument_is_on_the_dashboard() -> None:
    asked = " ".join(query for queries in panels().values() for query in queries)
    missing = {name for name, each in metrics.INSTRUMENTS.items() if each.text_name not in asked}
    assert not missing


def test_alerts_name_the_errors_of_the_server_and_say_where_to_look() -> None:
    (alert,) = [each for each in rules() if each["alert"] == "ParleyServerErrors"]
    (named,) = re.findall(r'error_type=~"([^"]+)"', alert["expr"])
    server_errors = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, A2AError) and each.http_status >= 500
    }
    assert {*named.split("|")} == server_errors - {"A2AError"}
    for each in rules():
        said = each["annotations"]["description"]
        for page in re.findall(r"docs/[\w/-]+\.md", said):
            assert (DEPLOY.parent / page).is_file(), page
        for panel in re.findall(r'"([A-Z][^"]+)"', said):
            assert panel in panels(), panel


def test_compose_adds_to_the_fleet_and_mounts_files_that_are_there() -> None:
    more, fleet = read("compose.yaml"), compose()
    services = more["services"]
    assert "agent" in fleet["services"]
    assert not (services.keys() - {"agent"}) & fleet["services"].keys()
    for name, each in services.items():
        for mounted in each.get("volumes", ()):
            source = mounted.split(":")[0]
            # Paths are relative to the first of the two files.
            assert source in more["volumes"] or (DEPLOY / source).is_file(), mounted
        for published in each.get("ports", ()):
            assert published.startswith("127.0.0.1:"), name
        assert {*each.get("networks", ())} <= more["networks"].keys()
        assert {*each.get("depends_on", ())} <= services.keys()
        if name != "agent":
            assert re.search(r":v?\d+\.\d+\.\d+$", each["image"]), name
    (network,) = more["networks"]["observability"]["ipam"]["config"]
    environment = services["agent"]["environment"]
    assert environment["PARLEY_RESTRICT"] == f"metrics={network['subnet']}"


def test_names_and_ports_of_the_files_agree() -> None:
    services, collector = read("compose.yaml")["services"], read("collector.yaml")
    pipelines = collector["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        used = {each for pipeline in pipelines for each in pipeline[kind]}
        assert used == collector[kind].keys()
    _, _, port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")
    sent = services["agent"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert sent == f"http://collector:{port}"
    assert collector["exporters"]["otlp/jaeger"]["endpoint"].partition(":")[0] in services
    scraped = {each["job_name"]: each for each in read("prometheus.yaml")["scrape_configs"]}
    (target,) = scraped["collector"]["static_configs"][0]["targets"]
    _, _, port = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")
    assert target == f"collector:{port}"
    assert scraped["parley"]["dns_sd_configs"][0]["names"] == ["agent"]
    for source in read("grafana/datasources.yaml")["datasources"]:
        assert source["url"].split("/")[2].partition(":")[0] in services
