"""The peers of the interoperability matrix: what each has, what it speaks, how it is had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .environments import JS_0_3, JS_1_3, PYTHON_0_3, PYTHON_0_3_LAST, PYTHON_1_3, Peer

JSONRPC, REST, GRPC = "JSONRPC", "HTTP+JSON", "GRPC"
EACH = (JSONRPC, REST, GRPC)


@dataclass(frozen=True, kw_only=True)
class Side:
    """The client or the server of a peer.

    ``script`` is below ``clients`` or ``servers``. ``speaks`` has the bindings with their versions,
    the one that it takes by itself first. ``lacks`` are exchanges that it does not offer, with the
    reason. ``operations`` is for clients that are driven by the protocol's operations, in its JSON
    of that version, and not by exchanges.
    """

    script: str
    speaks: tuple[tuple[str, str], ...]
    lacks: Mapping[str, str] = field(default_factory=dict)
    operations: str = ""
    name: str = "Official agent"


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A peer by the name it has on the page, and how somebody else has it."""

    title: str
    had: str
    peer: Peer
    client: Side | None = None
    server: Side | None = None


def _all(*versions: str) -> tuple[tuple[str, str], ...]:
    return tuple((binding, version) for version in versions for binding in EACH)


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
}
"""The peers by the names that ``deviations.toml`` has for them."""
