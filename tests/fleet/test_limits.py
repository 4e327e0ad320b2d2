"""A full database disk, and slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import parley
from parley.model.errors import OverloadedError
from tests.fleet.callers import World, client
from tests.fleet.conftest import FleetOf
from tests.fleet.fleet import Fleet
from tests.fleet.load import load
from tests.kit.services.postgres import PostgresServer
from tests.kit.services.proxy import line

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DISK_MB = 48


class Disk:
    """A small disk that a test can fill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Fill the disk completely."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Free the space."""
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk of a few megabytes, for a PostgreSQL database."""
    place = Path(tempfile.mkdtemp(prefix="parley-disk-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=777", "parley-disk", str(place)]
    try:
        if shutil.which("mount") is None or os.geteuid() != 0:
            pytest.skip("only root can make a small disk")
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no small disk can be made here: {done.stderr.strip()}")
        try:
            yield Disk(place)
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
    finally:
        place.rmdir()


def database_on(server: PostgresServer, disk: Disk) -> str:
    """Create a database with its tables on the disk and its journal elsewhere; return its URL."""
    folder = disk.folder / "tables"
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody", "nogroup")
    name = f"small_{os.getpid()}"
    server.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
    server.execute(f"CREATE DATABASE {name} TABLESPACE {name}")
    return server.url(name)


def drop(server: PostgresServer) -> None:
    """Drop the database on the disk."""
    name = f"small_{os.getpid()}"
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    server.execute(f"DROP TABLESPACE {name}")


# The test has no service mark: it may be skipped on machines that cannot mount a small disk.
async def test_a_full_disk_refuses_and_loses_nothing(
    fleet_of: FleetOf, mortal_postgres: PostgresServer, disk: Disk
) -> None:
    store = await asyncio.to_thread(database_on, mortal_postgres, disk)
    try:
        async with (
            asyncio.timeout(180),
            fleet_of(2, store=store) as fleet,
            load(fleet, 1, at_once=4) as callers,
        ):
            await callers.until(5)
            await asyncio.to_thread(disk.fill)
            await until_refused(fleet)
            await asyncio.to_thread(disk.free)
            await callers.until(callers.book.done.total() + 10)
    finally:
        await asyncio.to_thread(drop, mortal_postgres)


async def until_refused(fleet: Fleet) -> None:
    """Send large messages until the full disk rejects a message, with a time for the retry."""
    async with parley.connect(fleet.url, retries=0, idempotent=False) as agent:
        for _ in range(2000):
            try:
                await agent.send(
                    "go",
                    data="." * 20_000,
                    message_metadata={"skill": "quick"},
                    return_immediately=True,
                )
            except OverloadedError as refusal:
                error = refusal
                break
        else:
            raise AssertionError("a full disk took everything")
    assert error.retry_after


@pytest.mark.service
async def test_slow_readers_get_everything_and_hold_nobody_up(fleet_of: FleetOf) -> None:
    """Readers also get everything when their replica dies during the stream."""
    async with (
        asyncio.timeout(180),
        fleet_of(2) as fleet,
        line(fleet.door.port) as slow,
        client(fleet.url) as agent,
        client(there := f"http://127.0.0.1:{slow.port}") as sluggish,
        load(fleet, 2, at_once=1) as callers,
    ):
        quick = World(fleet.url, agent, callers.book, callers.hook, random.Random(1))
        snail = World(there, sluggish, callers.book, callers.hook, quick.chance)
        task = await quick.begin("flood", "600 2000")
        slow.rate = 500_000
        snails = [asyncio.create_task(snail.follow(task.id)) for _ in range(3)]
        await quick.watch(task.id)
        assert not any(each.done() for each in snails)
        await fleet.replicas[0].end()
        await fleet.replicas[0].start()
        slow.heal()
        await asyncio.gather(*snails)
