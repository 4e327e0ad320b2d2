"""A private Prometheus for tests: it reads servers of the tests, and evaluates rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.processes import free_port
from tests.kit.waiting import block_thread

MISSING = "" if shutil.which("prometheus") else "Prometheus is not installed"


class Prometheus:
    """A running Prometheus, asked through its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the series that an expression has now."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def alerts(self) -> list[Any]:
        """Return the alerts that fire."""
        return [each for each in self.ask("alerts")["alerts"] if each["state"] == "firing"]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self.alerts()}


@contextmanager
def running(folder: Path, configuration: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Run a Prometheus with a configuration, whose rule files are in the folder."""
    port = free_port()
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        while not _is_ready(found):
            assert process.poll() is None, (folder / "log").read_text("utf-8")
            block_thread(0.05)
        yield found
    finally:
        process.kill()
        process.wait()


def _is_ready(found: Prometheus) -> bool:
    try:
        with urllib.request.urlopen(f"{found.url}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
