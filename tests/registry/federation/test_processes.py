"""Three registries in processes of their own, in a circle: one is killed, the others answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import parley
from tests.kit.processes import free_port
from tests.kit.waiting import wait_until
from tests.registry.federation.registries import entry

NAMES = ("one", "two", "three")


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[list[str], list[subprocess.Popen[bytes]]]]:
    with ExitStack() as stack:
        ports = [free_port() for _ in NAMES]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        processes = []
        for number, name in enumerate(NAMES):
            catalog = tmp_path / f"{name}.json"
            listed = [entry(f"urn:air:{name}.example:agent:fx", f"Currency conversion of {name}")]
            catalog.write_text(json.dumps({"specVersion": "1.0", "entries": listed}))
            command = [sys.executable, "-m", "parley", "registry", "serve"]
            command += ["--port", str(ports[number]), "--entries", str(catalog)]
            command += ["--store", f"sqlite:///{tmp_path}/{name}.db"]
            command += ["--upstream", urls[(number + 1) % len(urls)]]
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield urls, processes


def found_at(url: str, federation: str = "auto") -> set[str]:
    try:
        found = parley.find_sync(
            "currency conversion", registry=url, federation=federation, retries=0, timeout=10
        )
    except parley.ClientError:
        return set()
    return {each.identifier.split(":")[2].partition(".")[0] for each in found}


def test_a_circle_of_processes_goes_on_when_one_is_killed(
    ring: tuple[list[str], list[subprocess.Popen[bytes]]],
) -> None:
    urls, processes = ring
    for url, name in zip(urls, NAMES, strict=True):
        wait_until(lambda url=url, name=name: found_at(url, "none") == {name}, 60)
    for url in urls:
        wait_until(lambda url=url: found_at(url) == set(NAMES), 30)
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].wait()
    assert found_at(urls[0]) == {"one"}
    assert found_at(urls[2]) == {"one", "three"}
