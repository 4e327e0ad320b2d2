"""Every place that opens an outbound connection is listed here, with its guard."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.sizes import ROOT

HOUSE = ROOT / "src" / "parley"

OPENERS = {
    "ClientSession",
    "TCPConnector",
    "UnixConnector",
    "bounded_connector",
    "connector",
    "guarded_session",
    "insecure_channel",
    "secure_channel",
    "open_connection",
    "open_unix_connection",
    "create_connection",
    "create_datagram_endpoint",
    "create_unix_connection",
    "sock_connect",
    "urlopen",
    "HTTPConnection",
    "HTTPSConnection",
    "SMTP",
    "SysLogHandler",
    "HttpTransport",
    "LoggedTransport",
    "ws_connect",
    "AsyncClient",
    "McpHttpClient",
    "AsyncOpenAI",
    "Resolver",
}
"""The names of calls that open a connection, or create an object that opens one."""

GUARD = "the egress policy itself"
WEBHOOKS = "the webhook policy, at connect time"
NAMED = "the policy for what a document names; none for what the operator names"
GIVEN = "the policy that is given, and that of the turn"
FILES = "the file policy"
ISSUERS = "the policy of the agent, but for the issuer that the author names"
USER = "none: the user of a command names the address"
OPERATOR = "none: the operator names the address"
TOOLS = "the policy of the agent, but for the server and issuer that the author names"
TEST = "none: the author of a test names the address"
CRAWL = "the policy of the registry, for every hop by name and at connect time"

OUTBOUND = {
    "security/egress.py": GUARD,
    "security/response_limits.py": GUARD,
    "push/http_sender.py": WEBHOOKS,
    "security/outbound.py": NAMED,
    "client/bindings/http.py": GIVEN,
    "client/bindings/websocket.py": GIVEN,
    "client/bindings/grpc.py": GIVEN,
    "client/connection.py": GIVEN,
    "agent/services.py": f"{FILES}; {ISSUERS}",
    "mcp/session_http.py": TOOLS,
    "cli/calls/agent_call.py": USER,
    "registry/client/remote_registry.py": GIVEN,
    "registry/federation/federated.py": OPERATOR,
    "registry/ingest/fetching.py": CRAWL,
    "registry/ingest/addresses.py": OPERATOR,
    "registry/health/probing.py": CRAWL,
    "llm/openai_model.py": OPERATOR,
    "conformance/commands.py": USER,
    "conformance/server_run.py": USER,
    "conformance/faults/proxy.py": TEST,
    "testing/cassettes.py": TEST,
}


def openers() -> Iterator[tuple[str, str]]:
    """Yield the files that call functions that open connections, and the functions."""
    for path in sorted(HOUSE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            name = (
                called.attr
                if isinstance(called, ast.Attribute)
                else called.id
                if isinstance(called, ast.Name)
                else ""
            )
            if name in OPENERS:
                yield path.relative_to(HOUSE).as_posix(), name


def test_every_place_that_connects_is_known_with_its_guard() -> None:
    """Add a new place to the list, with the policy that checks its targets."""
    assert {path for path, _ in openers()} == OUTBOUND.keys()


def test_sessions_are_made_in_one_place() -> None:
    """It bounds responses and keeps no cookies. An operator's collector may use a proxy."""
    makers = {path for path, name in openers() if name == "ClientSession"}
    assert makers == {"security/outbound.py"}


def test_nothing_takes_proxies_from_the_environment_where_a_policy_holds() -> None:
    """By default the library would; ``trust_env`` is false wherever it is named."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in HOUSE.rglob("*.py")
        if OUTBOUND.get(path.relative_to(HOUSE).as_posix()) != OPERATOR
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "ClientSession"
        for option in node.keywords
        if option.arg == "trust_env"
        and not (isinstance(option.value, ast.Constant) and option.value.value is False)
    ]
    assert found == []


def test_every_socket_names_its_protocol() -> None:
    """Otherwise asyncio leaves Nagle's algorithm on: a response in two pieces takes 40 ms."""
    unnamed = {"socket.socket()", "socket.create_server"}
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*HOUSE.rglob("*.py"), *(ROOT / "tests").glob("*/conftest.py")]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if any(each in line for each in unnamed)
    ]
    assert found == []
