"""Files over broken connections and killed servers, and of any size in constant memory."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
from pathlib import Path

import pytest

import parley
from parley.client.retry import Retry
from tests.faults.conftest import Served
from tests.kit.services.proxy import FaultyProxy

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
PATIENT = Retry(calls=20, streams=40, first=0.01, limit=0.5)

CLIENT = """
import asyncio, resource, sys
from pathlib import Path
import parley

async def main(url, path, out):
    async with parley.connect(url) as remote:
        task = await remote.send(files=[Path(path)], metadata={"skill": "copy"})
        assert task.state is parley.TaskState.COMPLETED, task.status
        (saved,) = await remote.download(task, out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak if sys.platform == "darwin" else peak * 1024)

asyncio.run(main(*sys.argv[1:]))
"""


def big_file(path: Path, size: int, seed: int = 7) -> str:
    """Write a file of this size without repetitions, and return its digest."""
    noise, digest = random.Random(seed), hashlib.sha256()
    with path.open("wb") as file:
        while size:
            block = noise.randbytes(min(size, MIB))
            file.write(block)
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def peak_of(url: str) -> int:
    """Return the peak memory of the server."""
    async with parley.connect(url) as remote:
        answer = await remote.send("?", metadata={"skill": "memory"})
        assert answer.task is None
        return int(answer.text)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="memory is not told there")
async def test_500_mb_go_in_and_out_in_constant_memory(served: Served, tmp_path: Path) -> None:
    """A twentieth of the bytes needs about as much memory, on both sides."""
    peaks = []
    for size in (25 * MIB, 500 * MIB):
        digest = big_file(tmp_path / "big.bin", size)
        out = tmp_path / f"out-{size}"
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, served.url, str(tmp_path / "big.bin"), str(out),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await client.communicate()
        assert client.returncode == 0
        (saved,) = out.iterdir()
        assert saved.stat().st_size == size
        assert digest_of(saved) == digest
        saved.unlink()
        peaks.append((int(said), await peak_of(served.url)))
    (small_client, small_server), (large_client, large_server) = peaks
    assert large_client - small_client < 40 * MIB
    assert large_server - small_server < 80 * MIB


class Cutter:
    """A proxy that breaks all connections whenever this many bytes have passed."""

    def __init__(self, proxy: FaultyProxy, places: list[int]) -> None:
        self._proxy = proxy
        self._places = sorted(places)
        self.cuts = 0

    def passed(self, count: int, _: int | None) -> None:
        while self._places and count >= self._places[0]:
            self._places.pop(0)
            self._proxy.cut()
            self.cuts += 1


@pytest.mark.parametrize("seed", range(3))
async def test_cuts_at_random_bytes_lose_and_double_nothing(
    served: Served, tmp_path: Path, seed: int
) -> None:
    noise, size = random.Random(seed), 20 * MIB + seed
    digest = big_file(tmp_path / "in.bin", size, seed)
    proxy = FaultyProxy("127.0.0.1", served.port)
    await proxy.accept()
    try:
        async with parley.connect(f"http://127.0.0.1:{proxy.port}", retries=PATIENT) as remote:
            cutter = Cutter(proxy, [noise.randrange(size) for _ in range(6)])
            part = await remote.upload(tmp_path / "in.bin", progress=cutter.passed)
            assert cutter.cuts == 6
            cutter = Cutter(proxy, [noise.randrange(size) for _ in range(6)])
            path = await remote.download(part, tmp_path / "out.bin", progress=cutter.passed)
            assert cutter.cuts == 6
    finally:
        await proxy.close()
    assert digest_of(path) == digest


async def test_a_server_that_is_killed_meanwhile_goes_on_where_it_was(
    served: Served, tmp_path: Path
) -> None:
    """The upload, the task that reads the file and the download resume in the next process."""
    size = 24 * MIB + 11
    digest = big_file(tmp_path / "in.bin", size)
    restarts: set[asyncio.Task[None]] = set()
    killed: list[int] = []

    async def restart() -> None:
        await served.end()
        await served.start()

    def kill_at(place: int) -> parley.client.files.stream.Progress:
        def passed(count: int, _: int | None) -> None:
            if count >= place and place not in killed:
                killed.append(place)
                assert served.process is not None
                served.process.kill()
                restarts.add(asyncio.create_task(restart()))

        return passed

    async with parley.connect(served.url, retries=PATIENT) as remote:
        part = await remote.upload(tmp_path / "in.bin", progress=kill_at(10 * MIB))
        task = await remote.send(files=[part], metadata={"skill": "copy"})
        assert task.id
        assert task.state is parley.TaskState.COMPLETED, task.status
        assert task.artifacts[0].text == digest
        file = task.artifacts[1].parts[0]
        path = await remote.download(file, tmp_path / "out.bin", progress=kill_at(11 * MIB))
    assert len(killed) == 2
    await asyncio.gather(*restarts)
    assert digest_of(path) == digest
