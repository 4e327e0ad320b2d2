"""Several replicas, each in its own process, behind a front door that distributes requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit import forking
from tests.kit.forking import ForkedServer
from tests.kit.processes import free_port
from tests.kit.services.front_door import FrontDoor, front_door
from tests.kit.services.proxy import FaultyProxy
from tests.kit.waiting import let_time_pass

SERVED = Path(__file__).with_name("served.py")
START_SECONDS = 60.0
END_SECONDS = 30.0


class Replica:
    """A server process that keeps its port over all restarts."""

    def __init__(
        self, name: str, options: dict[str, Any], home: Path, *, script: Path = SERVED
    ) -> None:
        self.name = name
        self.script = script
        self.host = options.get("host", "127.0.0.1")
        self.port = options.get("port") or free_port()
        self.url = f"http://{self.host}:{self.port}"
        self.options = options
        self.log = home / f"{name}.log"
        self.acts = home / "acts"
        self.process: ForkedServer | asyncio.subprocess.Process | None = None
        self.is_stopped = False

    @property
    def is_up(self) -> bool:
        """Return whether the process is there and runs."""
        running = self.process is not None and self.process.returncode is None
        return running and not self.is_stopped

    async def start(self) -> None:
        """Start the process and wait until it accepts connections."""
        options = json.dumps({**self.options, "port": self.port})
        with self.log.open("ab") as log:
            self.process = await forking.start(
                (str(self.script), options),
                output=log,
                environment={**os.environ, "FLEET_ACTS": str(self.acts)},
            )
        async with asyncio.timeout(START_SECONDS):
            while True:
                assert self.process.returncode is None, self.log.read_text()[-3000:]
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(self.host, self.port)
                    writer.close()
                    return
                await let_time_pass(0.02)

    def tell(self, number: int) -> None:
        """Send the process a signal, if there is one."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            self.is_stopped = number == signal.SIGSTOP

    async def end(self, how: int = signal.SIGKILL) -> int:
        """End the process by a signal, and return its exit status."""
        assert self.process is not None
        self.tell(how)
        return await asyncio.wait_for(self.process.wait(), END_SECONDS)


class Fleet:
    """Replicas on one store. ``store`` is its address without a faulty proxy.

    ``url`` is the callers' address of the agent. ``lines`` are the proxies between the replicas and
    the services, and between callers and the door.
    """

    def __init__(
        self, replicas: list[Replica], door: FrontDoor, home: Path, store: str, lease: float
    ) -> None:
        self.replicas = replicas
        self.door = door
        self.home = home
        self.store = store
        self.lease = lease
        self.url = door.url
        self.lines: list[FaultyProxy] = []
        self.postgres: Any = None
        self.redis: Any = None

    def one(self, chance: random.Random) -> Replica:
        """Return a random running replica."""
        return chance.choice([each for each in self.replicas if each.is_up])

    def line(self, chance: random.Random) -> FaultyProxy:
        """Return a random proxy."""
        return chance.choice(self.lines)

    def logs(self) -> str:
        """Return the ends of the replicas' logs."""
        return "\n".join(f"--- {r.name}\n{r.log.read_text()[-2000:]}" for r in self.replicas)


@asynccontextmanager
async def fleet_of(
    count: int,
    home: Path,
    *,
    store: str,
    through: str = "",
    roles: Sequence[str] = (),
    seed: int = 0,
    lease: float = 1.0,
    script: Path = SERVED,
    **options: Any,
) -> AsyncIterator[Fleet]:
    """A fleet that lives as long as the context. ``script`` takes the options of ``parley.serve``
    as JSON.

    ``through`` is the replicas' address of the store, if it differs from ``store``. ``roles`` has
    the role of each replica; requests reach every replica except workers.
    """
    given = {"store": through or store, **options}
    if not store.startswith("sqlite:"):
        given["lease"] = lease
    replicas = [
        Replica(
            f"replica-{n}", {**given, **({"role": roles[n]} if roles else {})}, home, script=script
        )
        for n in range(count)
    ]
    answering = [each.url for each in replicas if each.options.get("role") != "worker"]
    async with front_door(answering, random.Random(seed)) as door:
        try:
            # Start the first replica alone, because the first replica creates the tables.
            for each in replicas:
                await each.start()
            yield Fleet(replicas, door, home, store, lease)
        finally:
            for each in replicas:
                if each.process is not None and each.process.returncode is None:
                    each.tell(signal.SIGCONT)
                    await each.end()
