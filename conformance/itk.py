"""The integration kit's scenarios, with a Parley node in the ring."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.peers.environments import python_of

from conformance.kits import ITK, files_of
from conformance.outcomes import Outcome, Outcomes
from conformance.served import ROOT

MINUTES = 8
_SERVER = ("fastapi>=0.115", "uvicorn>=0.30", "grpcio>=1.76", "protobuf>=6.33", "click>=8")
PYTHON_NODES = {
    "python_v10": ("agents/python/v10", ("a2a-sdk[http-server,grpc]==1.0.3", *_SERVER)),
    "python_v03": ("agents/python/v03", ("a2a-sdk[http-server,grpc]==0.3.24", *_SERVER)),
}
BINDINGS = ("jsonrpc", "http_json", "grpc")


def scenarios() -> list[dict[str, Any]]:
    """Return every way to talk, with the nodes of each version alone and of all together.

    Each node calls each other one; the kit's instruction goes along every edge.
    """
    rings = {
        "1.0": ["current", "python_v10"],
        "0.3": ["current", "python_v03"],
        "from 0.3": ["python_v03", "current"],
        "both": ["current", "python_v10", "python_v03"],
    }
    found = []
    for ring, sdks in rings.items():
        for way, behaviour, streaming in (
            ("send", "send_message", False),
            ("stream", "send_message", True),
            ("push", "push_notification", False),
            ("resubscribe", "resubscribe", True),
        ):
            found += [
                {
                    "name": f"{way} {ring} {binding}",
                    "sdks": sdks,
                    "behavior": behaviour,
                    "streaming": streaming,
                    "protocols": [binding],
                }
                for binding in BINDINGS
            ]
    return found


def run() -> Outcomes:
    """Run all scenarios. Raises ``NotAtHand``."""
    files = files_of(ITK)
    python = python_of(ITK.name, ITK.packages)
    pyproto = str(files / "agents" / "python" / "v10")
    # The node is Parley's; what it reads instructions with is the kit's.
    node = [sys.executable, str(ROOT / "conformance" / "itk_node.py")]
    nodes: dict[str, tuple[list[str], str]] = {"current": (node, pyproto)}
    for name, (folder, packages) in PYTHON_NODES.items():
        own = python_of(f"itk-{name}", packages)
        nodes[name] = ([str(own), "-W", "ignore", "main.py"], str(files / folder))
    asked = {"nodes": nodes, "scenarios": scenarios()}
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        driver = Path(scratch) / "driver.py"
        shutil.copy(ROOT / "conformance" / "itk_driver.py", driver)
        done = subprocess.run(
            [str(python), "-W", "ignore", str(driver), str(results)],
            input=json.dumps(asked),
            cwd=files,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60 * MINUTES,
            env={
                **os.environ,
                "PYTHONPATH": pyproto,
                "PYTHONDONTWRITEBYTECODE": "1",
                "ITK_LOG_LEVEL": "WARNING",
            },
            check=False,
        )
        if told := os.environ.get("CONFORMANCE_LOG"):
            with Path(told).open("a") as log:
                log.write(done.stdout)
        if not results.exists():
            raise RuntimeError(f"the kit did not run: {done.stdout[-2000:]}")
        passed = json.loads(results.read_text())
    return {name: Outcome("passed" if ok else "failed") for name, ok in passed.items()}
