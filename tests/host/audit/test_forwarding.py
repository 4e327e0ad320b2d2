"""The audit is forwarded at least once, in order, from one replica at a time."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import parley
from parley import Agent
from parley.host.audit import server_audit as forwarding
from parley.host.audit.addresses import destination_of
from parley.host.audit.destinations import DestinationFailed
from parley.host.audit.server_audit import LINES, AuditForwarder
from parley.model.backoff import Backoff
from parley.store.audit.trail import AuditEntry, AuditFilter
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.task_store import TaskStore
from tests.certificates import Authority
from tests.host.audit.receivers import Received, collector, parsed, tcp_syslog, udp_syslog
from tests.polling import let_time_pass, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(forwarding, "_BACKOFF", Backoff(0.01, 0.02))


@pytest.fixture
async def store() -> MemoryTaskStore:
    store = MemoryTaskStore()
    await store.open(lambda records: None)
    return store


def some(count: int) -> list[AuditEntry]:
    kind = "a.kind.that.is.longer.than.a.message.id.may.be"
    return [AuditEntry(kind=kind, actor=f"é\n{n}", details={"n": n}) for n in range(count)]


async def test_datagrams_are_messages_of_rfc_5424(store: MemoryTaskStore) -> None:
    async with udp_syslog() as received:
        await store.append_audit(some(3))
        forwarder = AuditForwarder(store, destination_of(f"syslog://127.0.0.1:{received.port}"))
        assert await forwarder.forward()
        await until(lambda: received.numbers == [1, 2, 3])
        assert received.documents[0]["actor"] == "é\n0"
        assert b"\n" not in received.raw[0]
        await forwarder.stop()


async def test_streams_count_octets_and_tls_is_verified(
    store: MemoryTaskStore, tmp_path: Path
) -> None:
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.server().write(tmp_path, "server"))
    ca = authority.write(tmp_path)
    await store.append_audit(some(LINES + 5))
    async with tcp_syslog() as plain, tcp_syslog(context) as encrypted:
        for received, url in (
            (plain, f"syslog+tcp://127.0.0.1:{plain.port}"),
            (encrypted, f"syslog+tls://127.0.0.1:{encrypted.port}?ca={ca}"),
        ):
            forwarder = AuditForwarder(store, destination_of(url))
            assert await forwarder.forward()
            await until(lambda of=received: of.numbers == [*range(1, LINES + 6)])
            await forwarder.stop()
        unknown = destination_of(f"syslog+tls://127.0.0.1:{encrypted.port}")
        with pytest.raises(DestinationFailed, match="certificate"):
            await unknown.send(some(1))


async def test_a_collector_of_opentelemetry_understands_it(
    store: MemoryTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    async with collector() as received:
        details = {"list": [1, "x", None, {"deep": True}], "yes": False}
        await store.append_audit([AuditEntry(kind="a", details=details), *some(2)])
        url = f"otlp+http://127.0.0.1:{received.port}"
        forwarder = AuditForwarder(store, destination_of(url))
        assert forwarder.destination.name == url
        assert await forwarder.forward()
        assert received.numbers == [1, 2, 3]
        assert received.documents[0]["details"] == details
        assert received.raw == [b"Bearer abc"]
        await forwarder.stop()


async def test_entries_that_a_collector_rejects_are_not_sent_again(
    store: MemoryTaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
    async with collector() as received:
        received.rejects = 1
        forwarder = AuditForwarder(store, destination_of(f"otlp+http://127.0.0.1:{received.port}"))
        await store.append_audit(some(2))
        assert await forwarder.forward()
        await store.append_audit(some(1))
        assert await forwarder.forward()
        assert received.numbers == [1, 2, 3]
        assert "lines 1 to 2" in caplog.text
        assert r"rejects 1 of 2 entries: 'too\nlong'" in caplog.text
        await forwarder.stop()


class Flaky:
    """A destination that fails when told to, after it took a part."""

    name = "test://flaky"

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.fails = False
        self.attempts = 0

    async def send(self, entries: Sequence[AuditEntry]) -> None:
        self.attempts += 1
        if self.fails:
            raise DestinationFailed("it is away")
        self.taken += [getattr(entry, "seq", 0) for entry in entries]

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_destination_that_was_away_gets_everything(
    store: MemoryTaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = Flaky()
    forwarder = AuditForwarder(store, flaky)
    await forwarder.start()
    await store.append_audit(some(2))
    await until(lambda: flaky.taken == [1, 2])
    flaky.fails = True
    await store.append_audit(some(3))
    before = flaky.attempts
    await until(lambda: flaky.attempts > before + 3)
    flaky.fails = False
    await until(lambda: flaky.taken == [1, 2, 3, 4, 5])
    assert caplog.text.count("not forwarded") == 1
    await forwarder.stop()


async def test_one_replica_at_a_time_forwards_and_another_goes_on() -> None:
    now = [1_000_000]
    logs = MemoryLogs(lambda: now[0])
    stores = [MemoryTaskStore(logs=logs) for _ in range(2)]
    for each in stores:
        await each.open(lambda records: None)
    flaky = Flaky()
    one, two = (AuditForwarder(each, flaky) for each in stores)
    await stores[0].append_audit(some(3))
    assert await one.forward()
    assert not await two.forward()
    await stores[1].append_audit(some(2))
    now[0] += forwarding.LEASE_MS + 1  # the first is silent: killed, or paused
    assert await two.forward()
    assert flaky.taken == [1, 2, 3, 4, 5]
    assert not await one.forward()
    await two.stop()
    assert await one.forward()  # a claim that was released
    assert flaky.taken == [1, 2, 3, 4, 5]
    for each in stores:
        await each.close()


async def test_what_was_sent_when_a_replica_died_is_sent_again(store: MemoryTaskStore) -> None:
    flaky = Flaky()
    await store.append_audit(some(3))

    holders: list[str] = []

    class Dying(MemoryTaskStore):
        async def save_audit_cursor(
            self, destination: str, holder: str, seq: int, until: int
        ) -> bool:
            holders.append(holder)
            raise KeyboardInterrupt

    dying = Dying(logs=store._shared)
    await dying.open(lambda records: None)
    with pytest.raises(KeyboardInterrupt):
        await AuditForwarder(dying, flaky).forward()
    await store.save_audit_cursor(flaky.name, holders[0], 0, 0)
    assert await AuditForwarder(store, flaky).forward()
    assert flaky.taken == [1, 2, 3, 1, 2, 3]
    await dying.close()


async def test_a_stop_that_is_cancelled_disconnects_and_lets_another_forward(
    store: MemoryTaskStore,
) -> None:
    class Hanging(Flaky):
        is_closed = False

        async def send(self, entries: Sequence[AuditEntry]) -> None:
            self.attempts += 1
            await asyncio.Event().wait()

        async def close(self) -> None:
            self.is_closed = True

    hanging = Hanging()
    forwarder = AuditForwarder(store, hanging)
    await forwarder.start()
    await store.append_audit(some(1))
    await until(lambda: hanging.attempts)
    stopping = asyncio.create_task(forwarder.stop(last_chance=60.0))
    await let_time_pass(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert hanging.is_closed
    assert await store.claim_audit_cursor(hanging.name, "another", store.now() + 1000) == 0


async def test_a_server_forwards_what_it_records(tmp_path: Path) -> None:
    agent = Agent("Echo")

    @agent.skill
    def echo(text: str) -> str:
        return text

    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with tcp_syslog() as received:
        audit = [f"syslog+tcp://127.0.0.1:{received.port}"]
        async with parley.connect(parley.asgi(agent, store=url, audit=audit)):
            await until(lambda: "server.started" in kinds(received))
        await until(lambda: "server.stopped" in kinds(received))
        async with parley.connect(parley.asgi(agent, store=url, audit=audit)):
            await until(lambda: kinds(received).count("server.started") == 2)
        await until(lambda: kinds(received).count("server.stopped") == 2)
        assert received.numbers == sorted(set(received.numbers))  # nothing twice


def kinds(received: Received) -> list[str]:
    return [document["kind"] for document in received.documents]


async def test_a_connection_that_was_closed_meanwhile_is_made_again(store: TaskStore) -> None:
    async with tcp_syslog() as received:
        destination = destination_of(f"syslog+tcp://127.0.0.1:{received.port}")
        await store.append_audit(some(1))
        await destination.send(await store.read_audit(AuditFilter()))
        await until(lambda: received.numbers == [1])
        received.fails = True

        async def is_refused() -> bool:
            try:
                await destination.send(await store.read_audit(AuditFilter()))
            except DestinationFailed:
                return True
            return False

        await until(is_refused)
        received.fails = False
        await destination.send(await store.read_audit(AuditFilter()))
        await until(lambda: received.numbers[-1] == 1 and len(received.numbers) >= 2)
        await destination.close()


RSYSLOG = """
module(load="imtcp")
template(name="raw" type="list") {{ property(name="msgid") constant(value=" ")
  property(name="app-name") constant(value=" ") property(name="msg") constant(value="\\n") }}
ruleset(name="all") {{ action(type="omfile" file="{folder}/out.log" template="raw") }}
input(type="imtcp" port="0" listenPortFileName="{folder}/port" address="127.0.0.1" ruleset="all")
"""


@pytest.mark.may_be_missing
@pytest.mark.skipif(shutil.which("rsyslogd") is None, reason="needs rsyslogd")
async def test_rsyslog_understands_it(store: MemoryTaskStore, tmp_path: Path) -> None:
    (tmp_path / "rsyslog.conf").write_text(RSYSLOG.format(folder=tmp_path))
    daemon = subprocess.Popen(
        ["rsyslogd", "-n", "-f", "rsyslog.conf", "-i", str(tmp_path / "pid")],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port, out = tmp_path / "port", tmp_path / "out.log"
        await until(lambda: port.exists() and port.read_text().strip(), seconds=20)
        await store.append_audit(some(50))
        address = f"syslog+tcp://127.0.0.1:{port.read_text().strip()}"
        forwarder = AuditForwarder(store, destination_of(address))
        assert await forwarder.forward()
        await until(lambda: out.exists() and out.read_text().count("\n") >= 50, seconds=20)
        lines = [line.split(" ", 2) for line in out.read_text().splitlines()]
        assert [json.loads(body)["seq"] for _, _, body in lines] == [*range(1, 51)]
        assert {app for _, app, _ in lines} == {"parley"}
        await forwarder.stop()
    finally:
        daemon.kill()
        daemon.wait()


async def test_a_host_that_no_name_can_be_is_a_failure_to_send() -> None:
    for kind in ("udp", "tcp"):
        destination = destination_of(f"syslog+{kind}://{'a' * 70}.example")
        with pytest.raises(DestinationFailed):
            await destination.send(some(1))


def test_a_message_has_ascii_alone() -> None:
    from parley.host.audit.syslog import message_of

    document = parsed(message_of(AuditEntry(kind="auth.failed", at=1, actor="\x1b[2J€\r\n")))
    assert document["actor"] == "\x1b[2J€\r\n"
    assert message_of(AuditEntry(kind="auth.failed", at=1)).startswith(b"<108>1 1970-01-01T00:00")
