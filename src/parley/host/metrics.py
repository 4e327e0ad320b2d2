"""The gauges of a host: set every few seconds, and whenever the metrics are read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from parley.model.concurrency import Periodic
from parley.observe import metrics
from parley.server.http.responses import NO_STORE, refuse_method, reply, reply_without_body
from parley.store.protocols.errors import StoreError

if TYPE_CHECKING:
    from parley.engine.executor import AgentExecutor
    from parley.observe.metrics_export import MetricsSender
    from parley.push.dispatcher import PushDispatcher
    from parley.store.bus.subscriptions import LocalHints
    from parley.store.task_store import TaskStore

SAMPLE_SECONDS = 5.0

_log = logging.getLogger("parley.host")


class HostMetrics:
    """Counts what a host has at the moment: turns, tasks, readers, webhooks."""

    def __init__(
        self,
        store: TaskStore,
        executors: Mapping[str, AgentExecutor],
        hints: LocalHints,
        push: PushDispatcher,
    ) -> None:
        self._store = store
        self._executors = executors
        self._hints = hints
        self._push = push
        self._begin_counts()
        sampling = Periodic(
            "sampling the metrics", self.sample, SAMPLE_SECONDS, log=_log, expected=StoreError
        )
        self._periodic = [sampling]

    def send_by(self, sender: MetricsSender) -> None:
        """Send the metrics too, from the start on."""

        async def send() -> None:
            with suppress(StoreError):
                await self.sample()
            await sender.send()

        sending = Periodic("sending the metrics", send, sender.seconds, log=_log, waits_first=True)
        self._periodic[1:] = [sending]

    def start(self) -> None:
        """Begin to sample, and to send."""
        for each in self._periodic:
            each.start()

    async def stop(self) -> None:
        """Sample a last time, and end; the host sends the last metrics."""
        for each in self._periodic:
            await each.stop()
        with suppress(StoreError):
            await self.sample()
        del self._periodic[1:]

    def _begin_counts(self) -> None:
        """Show counters of failures as 0 from the start: else a rate misses the first failure."""
        found = metrics.start()
        found.of("deliveries", "failed")
        for agent, executor in self._executors.items():
            found.of("recoveries", agent)
            for skill in executor.skills:
                found.of("turns", agent, skill, "failed")

    async def sample(self) -> None:
        """Set the gauges. Raises ``StoreError`` if the queue cannot be read."""
        found = metrics.start()
        found.of("readers").set(self._hints.readers)
        found.of("lag").set(self._hints.held)
        states, age = self._push.counts()
        for state, count in states.items():
            found.of("webhooks", state).set(count)
        found.of("webhook_age").set(age)
        for agent, executor in self._executors.items():
            found.of("running", agent).set(executor.running)
            found.of("leases", agent).set(executor.held)
            found.of("waiting", agent).set(executor.queue.length)
        now = self._store.now()
        for agent, executor in self._executors.items():
            since = await self._store.queued_since(agent) if executor.queue.backlog else 0
            found.of("queue_age", agent).set(max(0, now - since) / 1000 if since else 0)


class MetricsPage:
    """``/metrics``: the metrics of the process in the text of Prometheus."""

    def __init__(self, sampled: HostMetrics) -> None:
        self._sampled = sampled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        from prometheus_client.exposition import choose_encoder

        if scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "the metrics are read with GET")
            return
        with suppress(StoreError):  # the other gauges are right, and the counters show failures
            await self._sampled.sample()
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        write, media_type = choose_encoder(accept)
        headers = [NO_STORE]
        if scope["method"] == "HEAD":
            await reply_without_body(send, 200, headers)
            return
        body = write(metrics.readable())
        await reply(send, 200, body, headers, media_type.encode())
