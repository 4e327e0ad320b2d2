"""The peers of the interoperability matrix: sides, bindings, versions, and how to install them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .environments import (
    AGENT_FRAMEWORK,
    BEEAI,
    CREWAI,
    FASTA2A,
    GO_2_4,
    GOOGLE_ADK,
    JDK,
    JS_0_3,
    JS_1_3,
    PYDANTIC_AI,
    PYTHON_0_3,
    PYTHON_0_3_LAST,
    PYTHON_1_3,
    RUST,
    STRANDS,
    Peer,
)

JSONRPC, REST, GRPC = "JSONRPC", "HTTP+JSON", "GRPC"
EACH = (JSONRPC, REST, GRPC)


@dataclass(frozen=True, kw_only=True)
class Side:
    """The client or the server of a peer.

    ``script`` is below ``clients`` or ``servers``. ``speaks`` has the bindings with their versions,
    the default first. ``lacks`` has the missing exchanges, with the reason; ``whole`` is the reason
    for streaming an answer in one chunk. ``operations`` is for clients that are driven by the
    protocol's operations, in its JSON of that version, and not by exchanges. ``settings`` are the
    settings of our server that the client needs.
    """

    script: str
    speaks: tuple[tuple[str, str], ...]
    lacks: Mapping[str, str] = field(default_factory=dict)
    operations: str = ""
    whole: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "Official agent"


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A peer with its name on the page, and how to install it."""

    title: str
    had: str
    peer: Peer
    client: Side | None = None
    server: Side | None = None


def _all(*versions: str) -> tuple[tuple[str, str], ...]:
    return tuple((binding, version) for version in versions for binding in EACH)


def _over_http(*versions: str) -> tuple[tuple[str, str], ...]:
    return tuple((binding, version) for version in versions for binding in (JSONRPC, REST))


_NO_CANCEL = {"cancel": "it cannot cancel a task"}

TABLE: dict[str, Implementation] = {
    "python-1.3": Implementation(
        title="Official Python SDK 1.3.0",
        had="`a2a-sdk` on PyPI",
        peer=PYTHON_1_3,
        client=Side(script="python_1_3.py", speaks=_all("1.0", "0.3"), operations="1.0"),
        server=Side(script="python_1_3.py", speaks=_all("1.0", "0.3")),
    ),
    "python-0.3.26": Implementation(
        title="Official Python SDK 0.3.26",
        had="`a2a-sdk` on PyPI",
        peer=PYTHON_0_3_LAST,
        client=Side(script="python_0_3.py", speaks=_all("0.3"), operations="0.3"),
        server=Side(script="python_0_3.py", speaks=_all("0.3")),
    ),
    "python-0.3": Implementation(
        title="Official Python SDK 0.3.10",
        had="`a2a-sdk` on PyPI",
        peer=PYTHON_0_3,
        client=Side(script="python_0_3.py", speaks=_all("0.3"), operations="0.3"),
        server=Side(script="python_0_3.py", speaks=_all("0.3")),
    ),
    "js-1.3": Implementation(
        title="Official JavaScript SDK 1.3.0",
        had="`@a2a-js/sdk` on npm",
        peer=JS_1_3,
        client=Side(script="js_1_3.cjs", speaks=_all("1.0", "0.3"), operations="1.0"),
        server=Side(script="js_1_3.cjs", speaks=_all("1.0", "0.3")),
    ),
    "js-0.3": Implementation(
        title="Official JavaScript SDK 0.3.14",
        had="`@a2a-js/sdk` on npm",
        peer=JS_0_3,
        client=Side(script="js_0_3.cjs", speaks=_all("0.3"), operations="0.3"),
        server=Side(script="js_0_3.cjs", speaks=_all("0.3")),
    ),
    "google-adk": Implementation(
        title="google-adk 2.13.0",
        had="`google-adk[a2a]` on PyPI",
        peer=GOOGLE_ADK,
        client=Side(
            script="google_adk.py",
            speaks=((JSONRPC, "1.0"), (REST, "1.0")),
            lacks=_NO_CANCEL,
            settings={"grpc_on_card": False},
        ),
        server=Side(
            script="google_adk.py",
            speaks=((JSONRPC, "1.0"),),
            name="scripted_agent",
            whole="`to_a2a` runs its agent without partial events",
        ),
    ),
    "fasta2a": Implementation(
        title="fasta2a 2.1.1",
        had="`fasta2a` on PyPI",
        peer=FASTA2A,
        client=Side(script="fasta2a_2.py", speaks=((JSONRPC, "0.3"),), lacks=_NO_CANCEL),
        server=Side(
            script="fasta2a_2.py",
            speaks=((JSONRPC, "1.0"),),
            name="Scripted agent",
            lacks={"question": "every message creates a task"},
        ),
    ),
    "pydantic-ai": Implementation(
        title="Pydantic AI 2.68.0",
        had="`pydantic-ai-slim` and `fasta2a[pydantic-ai]` on PyPI; its client is fasta2a's",
        peer=PYDANTIC_AI,
        server=Side(
            script="pydantic_agent.py",
            speaks=((JSONRPC, "1.0"),),
            name="Scripted agent",
            lacks={"question": "every message creates a task"},
        ),
    ),
    "agent-framework": Implementation(
        title="Microsoft Agent Framework 1.0.0b261022",
        had="`agent-framework-a2a` on PyPI",
        peer=AGENT_FRAMEWORK,
        client=Side(
            script="microsoft.py", speaks=((JSONRPC, "1.0"), (REST, "1.0")), lacks=_NO_CANCEL
        ),
        server=Side(
            script="microsoft.py",
            speaks=((JSONRPC, "1.0"),),
            name="Scripted agent",
            lacks={
                "question": "`A2AExecutor` ends the task with every turn",
                "file": "`A2AExecutor` passes only text on",
            },
        ),
    ),
    "strands": Implementation(
        title="Strands 1.62.0",
        had="`strands-agents[a2a]` on PyPI",
        peer=STRANDS,
        client=Side(
            script="strands_agents.py",
            speaks=((JSONRPC, "0.3"),),
            lacks={
                **_NO_CANCEL,
                "question": "it sends no task or context",
                "file": "it sends only text",
            },
        ),
        server=Side(
            script="strands_agents.py",
            speaks=((JSONRPC, "0.3"),),
            name="Scripted agent",
            whole="its chunks are status messages before the artifact",
            lacks={"question": "an interrupt expects a data part of its own"},
        ),
    ),
    "beeai": Implementation(
        title="BeeAI 0.1.85",
        had="`beeai-framework[a2a]` on PyPI",
        peer=BEEAI,
        client=Side(script="beeai.py", speaks=((JSONRPC, "0.3"),), lacks=_NO_CANCEL),
        server=Side(
            script="beeai.py",
            speaks=((JSONRPC, "0.3"),),
            name="Scripted agent",
            whole="its runnables answer with one message",
            lacks={
                "question": "its runnables answer with one message",
                "cancel": "its runnables answer with one message",
            },
        ),
    ),
    "crewai": Implementation(
        title="CrewAI 1.15.30",
        had="`crewai[a2a]` on PyPI",
        peer=CREWAI,
        client=Side(
            script="crewai_1.py",
            speaks=((JSONRPC, "0.3"),),
            lacks={**_NO_CANCEL, "stream": "its events have the size of an artifact, not its text"},
        ),
        server=Side(
            script="crewai_1.py",
            speaks=((JSONRPC, "0.3"),),
            name="Scripted agent",
            whole="its agents answer with an ended task",
            lacks={
                "question": "its agents answer with an ended task",
                "file": "an agent outside a crew gets no files",
                "cancel": "its agents answer with an ended task",
            },
        ),
    ),
    "go-2.4": Implementation(
        title="Official Go SDK 2.4.0",
        had="`github.com/a2aproject/a2a-go/v2`, Go 1.25 or later",
        peer=GO_2_4,
        client=Side(script="go", speaks=_all("1.0", "0.3"), operations="1.0"),
        server=Side(script="go", speaks=_all("1.0", "0.3")),
    ),
    "rust-0.4": Implementation(
        title="Official Rust command line 0.4.5",
        had="the crate `a2a-cli`",
        peer=RUST,
        client=Side(script="rust_cli.py", speaks=_over_http("1.0")),
    ),
    "jdk": Implementation(
        title="HTTP client of the JDK",
        had="`java.net.http` of JDK 17 or later",
        peer=JDK,
        client=Side(script="JdkHttpClient.java", speaks=_over_http("1.0", "0.3")),
    ),
}
"""The peers by their names in ``deviations.toml``."""
