"""The tool of Agentic Resource Discovery, against what Parley publishes, and its registry."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.kits import ARD, files_of
from conformance.outcomes import Outcome, Outcomes

if TYPE_CHECKING:
    from parley import Agent
    from parley.server.app import App

VERSION = "v0.91"
"""The version of the specification that Parley follows."""

TOOL = "conformance/bin/conformance-test"
TOOL_SHA256 = "bf0f1b022ca0981fa4b0a6067df47cda9e15129b3cebc011d501023ac3c01781"
TEXT = "spec/ard.md"
SCHEMA = "spec/schemas/ard-entry.schema.json"
CATALOG = "/.well-known/ard.json"
PREDECESSOR = "/.well-known/ai-catalog.json"
PUBLISHER = "agent.localhost"
SECONDS = 60

_COLORS = re.compile(r"\x1b\[\d*m")


class Scene(NamedTuple):
    """A server, and the paths of its catalogs."""

    app: Callable[[], App]
    paths: tuple[str, ...] = (CATALOG, PREDECESSOR)


def run() -> Outcomes:
    """Have the tool check every catalog of every scene. Raises ``NotAtHand``."""
    files = files_of(ARD)
    return asyncio.run(_run(files))


async def _run(files: Path) -> Outcomes:
    from parley.server.run import serving

    outcomes: Outcomes = {}
    if newer := newer_text(files):
        print(f"ard: there is a newer text than {VERSION}, to be read and followed: {newer}")
    for name, scene in SCENES.items():
        async with serving(scene.app()) as url:
            for path in scene.paths:
                outcomes[f"manifest: {name}, {path}"] = await checked(files, url + path)
            outcomes[f"publisher: {name}"] = await checked(files, url, "publisher")
    async with serving(several()) as there:
        outcomes |= await asyncio.to_thread(_check_registry, files, there)
    return outcomes


def _check_registry(files: Path, there: str) -> Outcomes:
    with registry_process("--crawl", there) as url:
        return {
            "registry": asked(files, "registry", url),
            "publisher: the registry": asked(files, "publisher", url),
        }


def newer_text(files: Path) -> str:
    """Return what has changed in the repository since the text that Parley follows."""
    there = ["git", "-C", str(files), "diff", "--shortstat", "HEAD", "origin/HEAD", "--", "spec"]
    done = subprocess.run(there, capture_output=True, text=True, check=False)
    return done.stdout.strip()


async def checked(files: Path, url: str, mode: str = "manifest") -> Outcome:
    """Return what the tool says of a catalog: it passes without an error and a warning."""
    return await asyncio.to_thread(asked, files, mode, url)


def asked(files: Path, mode: str, url: str, *more: str) -> Outcome:
    """Return what the tool says in one of its modes."""
    words = [sys.executable, str(files / TOOL), mode, url, *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    said = _COLORS.sub("", done.stdout + done.stderr)
    is_strict = mode == "registry" or "entries validate against ArdEntry" in said
    is_clean = "0 critical specification errors and 0 warnings" in said
    if done.returncode == 0 and is_strict and is_clean:
        return Outcome("passed")
    wrong = [line.strip() for line in said.splitlines() if line.strip()[:1] in ("✗", "⚠")]
    return Outcome("failed", "; ".join(wrong)[:300] or said[-300:])


WEATHER: dict[str, Any] = {
    "specVersion": "1.0",
    "entries": [
        {
            "identifier": "urn:air:agent.localhost:server:weather",
            "displayName": "Weather forecast tools",
            "type": "application/mcp-server-card+json",
            "url": "https://agent.localhost/mcp.json",
            "description": "Forecasts of the weather.",
            "capabilities": ["WeatherTool", "ForecastTool"],
            "@context": {"acme": "https://acme.localhost/vocab#"},
            "acme:tier": "gold",
            "acme:site": {"city": "Oslo"},
        }
    ],
}
"""What the tool searches a registry for."""


@contextmanager
def registry_process(*options: str, entries: Any = WEATHER) -> Iterator[str]:
    """Run ``parley registry serve``, with a catalog in a file; yield its address when it has read
    all of its sources.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "entries.json")
        file.write_text(json.dumps(entries), "utf-8")
        words = ["registry", "serve", "--port", "0", "--entries", str(file), *options]
        words += ["--publisher", "registry.localhost", "--log-level", "warning"]
        with subprocess.Popen(
            [sys.executable, "-m", "parley.cli", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                url = _address(process)
                _wait_for(url, 1 + 2 * words.count("--crawl"))
                yield url
            finally:
                process.terminate()
                process.wait(SECONDS)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().startswith("address"):
            return line.split()[-1]
    raise RuntimeError("parley registry serve did not start")


def _wait_for(url: str, count: int) -> None:
    """Wait until a registry has so many entries."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{url}/agents", timeout=5) as answer:
            if json.load(answer)["total"] >= count:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the registry has not read {count} entries")


def agent(name: str = "Time agent", *examples: str) -> Agent:
    """Return an agent with one skill."""
    from parley import Agent

    made = Agent(name, description=f"{name}: tells the time.", version="1.2.0")

    @made.skill(tags=["time", "zones"], examples=examples)
    async def tell_time(text: str) -> str:
        """Tells the time of a time zone. It knows all of them."""
        return "It is noon."

    return made


def one() -> App:
    """One agent, at the root."""
    import parley

    return parley.asgi(
        agent("Time agent", "What time is it?", "And in Tokyo?"), publisher=PUBLISHER
    )


def bare() -> App:
    """An agent that says next to nothing of itself."""
    import parley
    from parley import Agent

    made = Agent("Bare", description="", version="")

    @made.skill
    async def act(text: str) -> str:
        return text

    return parley.asgi(made, publisher=PUBLISHER, namespace="finance:trading")


def below() -> App:
    """One agent, under a path."""
    import parley

    return parley.asgi({"/time": agent()}, publisher=PUBLISHER)


def several() -> App:
    """Several agents."""
    import parley

    return parley.asgi([agent("Time agent", "Now?"), agent("Boat agent")], publisher=PUBLISHER)


def tenants() -> App:
    """An agent with tenants beside it."""
    import parley

    return parley.asgi(
        agent(), tenants={"acme": agent("Shop"), "globex": agent("Help")}, publisher=PUBLISHER
    )


def signed() -> App:
    """An agent whose entry is signed."""
    from tests.security.signing.key_sets import key_set

    import parley
    from parley.security.signing.keys import SigningKeys
    from parley.server.app import Settings

    return parley.asgi(
        agent(),
        publisher="example.com",
        url="https://agents.example.com",
        signing_keys=SigningKeys.parse(key_set()),
        settings=Settings(allowed_hosts=("*",)),
    )


SCENES = {
    "one agent": Scene(one),
    "an agent that says little": Scene(bare),
    "one agent under a path": Scene(below),
    "several agents": Scene(several),
    "tenants": Scene(tenants, (CATALOG, f"/acme{CATALOG}", f"/globex{PREDECESSOR}")),
    "signed": Scene(signed),
}
