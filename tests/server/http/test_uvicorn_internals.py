"""The internals of uvicorn that the server overrides and reads, each by its name.

``server/http/connection.py`` and ``server/http1/uvicorn_server.py`` rely on them. A new minor of
uvicorn may change them without notice, so pyproject.toml bounds it: run these tests and those of
the server with the new one, adapt the two files, then raise the bound.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from parley.server.http.connection import BoundedProtocol, _Flow
from parley.server.http1.uvicorn_server import UvicornServer as Server

ROOT = Path(__file__).parents[3]

OVERRIDDEN = {
    HttpToolsProtocol: (
        "send_400_response _unsupported_upgrade_warning on_response_complete"
        " timeout_keep_alive_handler"
    ),
    uvicorn.Server: "capture_signals startup main_loop handle_exit",
    FlowControl: "resume_reading",
}
"""Methods that uvicorn calls, and that the server overrides."""

CALLBACKS = {
    asyncio.Protocol: ("connection_made", "connection_lost", "data_received", "pause_writing"),
    httptools.HttpRequestParser: ("on_message_begin", "on_headers_complete", "on_body"),
}
"""Methods that asyncio and httptools call, which uvicorn defines and the server extends."""

READ = {
    "protocol": (
        "timeout_keep_alive timeout_keep_alive_task connections loop transport flow client pipeline"
        " scope headers url cycle parser _unset_keepalive_if_required on_message_complete"
        " resume_writing app tasks access_log root_path"
    ),
    "cycle": "body keep_alive response_started response_complete disconnected message_event",
    "flow": "_transport read_paused write_paused pause_reading",
    "server": "should_exit force_exit config serve on_tick server_state",
    "config": "http_protocol_class backlog",
    "parser": "should_upgrade get_method get_http_version feed_data set_dangerous_leniencies",
}
"""Attributes and methods that the server reads, sets or calls."""


class Transport(asyncio.Transport):
    """A connection to nobody."""


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Any]]:
    """One of each kind of object, as uvicorn makes it for a request."""
    loop = asyncio.new_event_loop()

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    async def make() -> dict[str, Any]:
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
        config.load()
        protocol = HttpToolsProtocol(config, ServerState(), {}, loop)
        protocol.connection_made(Transport())
        parser = protocol.parser
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        await asyncio.gather(*protocol.tasks, return_exceptions=True)
        return {
            "protocol": protocol,
            "cycle": protocol.cycle,
            "flow": protocol.flow,
            "server": uvicorn.Server(config),
            "config": config,
            "parser": parser,
        }

    try:
        yield loop.run_until_complete(make())
    finally:
        loop.close()


def names_in(code: CodeType) -> set[str]:
    nested = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(names_in, nested))


def changed(what: str) -> str:
    return (
        f"uvicorn {uvicorn.__version__} {what}; parley/server/http/connection.py or "
        "parley/server/http1/uvicorn_server.py relies on it: adapt them, then raise the bound in "
        "pyproject.toml"
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in READ.items() for name in names.split()]
)
def test_uvicorn_has_what_the_server_reads(made: dict[str, Any], kind: str, name: str) -> None:
    assert hasattr(made[kind], name), changed(f"has no {type(made[kind]).__name__}.{name}")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner, names in OVERRIDDEN.items() for name in names.split()],
)
def test_uvicorn_calls_what_the_server_overrides(owner: type, name: str) -> None:
    assert name in vars(owner), changed(f"has no {owner.__name__}.{name}")
    callers = (HttpToolsProtocol, RequestResponseCycle, uvicorn.Server)
    functions = [each for caller in callers for each in vars(caller).values()]
    called = set().union(*(names_in(f.__code__) for f in functions if isinstance(f, FunctionType)))
    called |= names_in(uvicorn.Server.capture_signals.__wrapped__.__code__)  # type: ignore[attr-defined]
    assert name in called, changed(f"does not call {owner.__name__}.{name}")


@pytest.mark.parametrize("name", [name for names in CALLBACKS.values() for name in names])
def test_uvicorn_defines_what_the_server_extends(name: str) -> None:
    assert name in vars(HttpToolsProtocol), changed(f"has no HttpToolsProtocol.{name}")


def test_the_lists_above_have_every_method_that_the_server_overrides() -> None:
    for ours, theirs in (
        (BoundedProtocol, HttpToolsProtocol),
        (_Flow, FlowControl),
        (Server, uvicorn.Server),
    ):
        overridden = {name for name, value in vars(ours).items() if isinstance(value, FunctionType)}
        overridden = {each for each in overridden & vars(theirs).keys() if each != "__init__"}
        listed = {name for names in CALLBACKS.values() for name in names}
        for names in (*OVERRIDDEN.values(), *READ.values()):
            listed.update(names.split())
        assert overridden <= listed


def test_the_server_sets_no_attribute_that_uvicorn_has(made: dict[str, Any]) -> None:
    """A private name of ours must not become one of theirs."""
    theirs = vars(made["protocol"]).keys() | vars(HttpToolsProtocol).keys()
    code = (ROOT / "src/parley/server/http/connection.py").read_text()
    ours = {name for name in re.findall(r"self\.(_\w+)", code) if name != "_transport"}
    assert ours & theirs == {"_unset_keepalive_if_required"}


def test_httptools_reports_where_an_upgrade_ends_the_data() -> None:
    parser = httptools.HttpRequestParser(object())
    head = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as stopped:
        parser.feed_data(head + b"rest")
    assert stopped.value.args == (len(head),)


def test_pyproject_bounds_uvicorn_at_the_tested_minor() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [required] = [each for each in pyproject["project"]["dependencies"] if "uvicorn" in each]
    bound = re.fullmatch(r"uvicorn>=0\.\d+,<0\.(\d+)", required)
    assert bound is not None, required
    assert int(uvicorn.__version__.split(".")[1]) < int(bound[1])
