"""Handlers of any exception are allowed only at the boundaries named here.

A handler that cleans up and raises again catches nothing, so it is allowed anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.sizes import ROOT

SOURCES = sorted((ROOT / "src" / "parley").rglob("*.py"))
ANY = {"Exception", "BaseException"}

BINDING = "a binding: a request ends with an answer, whatever happened"
SERVER = "the server under ASGI's lifespan, or in a thread of its own: who runs it is told"
AUTHOR = "code of an agent's or an extension's author"
CALLER = "the body of a call in process: its error reaches the caller as a cause, and not the app"
PUSH = "push delivery: a webhook's trouble is no other's"
HANDLER = "the handler of a receiver's author: the sender is told, or the log"
HANDLERS = "code of an operator's plug-in"
PEER = "one of several agents that are asked: its trouble is no other's"
STORE = "the store that a server lends: its trouble is an overload to who asks"
STORE_THREAD = "a thread of a store: who waits for a job is told, and the next job is done"
COMMITTED = "telling of a commit: it stands, whatever those who hear of it do"
LOOP = "a task that has to go on looking after others until the server ends"
CRAWL = "a crawler: the trouble of one source or entry is no other's"
LOG = "a handler of log records: logging prints its failure, and the program goes on"
COMMAND = "the command: what was raised becomes a report and an exit status"
MCP = "the connection's task: what the package raises differs by transport; openers are told"
MCP_REQUEST = "a request over a connection that others share: its failure is its answer"
BOUNDARIES = {
    ("model/concurrency.py", "_run"): LOOP,
    ("model/errors.py", "author_code"): AUTHOR,
    ("engine/description.py", "of"): AUTHOR,
    ("engine/turn/outcome.py", "run"): AUTHOR,
    ("llm/function_tools.py", "_call"): AUTHOR,
    ("integrations/serving.py", "serve"): AUTHOR,
    ("integrations/google_adk/serving.py", "run"): AUTHOR,
    ("engine/turn/task_runner.py", "_run"): AUTHOR,
    ("engine/turn/outcome.py", "outcome_of"): AUTHOR,
    ("engine/turn/task_runner.py", "_cancel_at_rest"): AUTHOR,
    ("integrations/a2a_sdk/execution.py", "_cancel"): AUTHOR,
    ("engine/capacity.py", "_work"): AUTHOR,
    ("integrations/crewai/threaded_run.py", "work"): AUTHOR,
    ("agent/blocking_turn.py", "update"): AUTHOR,
    ("mcp/session.py", "_own"): MCP,
    ("mcp/session_http.py", "send"): MCP_REQUEST,
    ("compose/calling.py", "_step"): AUTHOR,
    ("agent/lifespan.py", "_run"): AUTHOR,
    ("envelope/client/session.py", "_handle"): HANDLER,
    ("cli/app.py", "_loaded"): AUTHOR,
    ("cli/loading.py", "_import_file"): AUTHOR,
    ("cli/loading.py", "_import_module"): AUTHOR,
    ("cli/output/streams.py", "exit_status_of"): COMMAND,
    ("observe/log_export.py", "emit"): LOG,
    ("server/dispatch.py", "start"): BINDING,
    ("server/http/exchange.py", "answer"): BINDING,
    ("server/http/exchange.py", "_answer_of"): BINDING,
    ("server/http/exchange.py", "_conclude_later"): BINDING,
    ("server/http/exchange.py", "run"): BINDING,
    ("server/http/responses.py", "answer"): BINDING,
    ("server/http1/asgi.py", "run"): SERVER,
    ("server/http1/asgi.py", "_identify_later"): BINDING,
    ("server/http1/asgi.py", "_write"): SERVER,
    ("server/http1/asgi.py", "_identify"): BINDING,
    ("server/http1/server.py", "run"): SERVER,
    ("server/http/callbacks.py", "__call__"): BINDING,
    ("server/http/files.py", "run"): BINDING,
    ("server/http/refusals.py", "__call__"): BINDING,
    ("server/grpc/call.py", "admit"): BINDING,
    ("server/grpc/call.py", "answer"): BINDING,
    ("server/grpc/call.py", "stream"): BINDING,
    ("server/http/streams.py", "run"): BINDING,
    ("server/http/open_credentials.py", "_judge"): BINDING,
    ("server/http/open_credentials.py", "_judge_later"): BINDING,
    ("server/websocket/admission.py", "_start"): BINDING,
    ("server/websocket/connection.py", "_run"): BINDING,
    ("server/app.py", "_follow_lifespan"): SERVER,
    ("server/lifecycle.py", "drain"): SERVER,
    ("server/workers.py", "_work"): SERVER,
    ("server/lifecycle.py", "reload"): SERVER,
    ("envelope/server/card.py", "__call__"): BINDING,
    ("envelope/server/services.py", "answer"): HANDLERS,
    ("envelope/server/conversation.py", "_serve_socket"): BINDING,
    ("envelope/server/conversation.py", "replies"): BINDING,
    ("envelope/server/conversation.py", "run"): BINDING,
    ("envelope/routing.py", "_ask"): PEER,
    ("envelope/routing.py", "_first"): PEER,
    ("envelope/routing.py", "_run"): PEER,
    ("registry/app/routes.py", "__call__"): BINDING,
    ("registry/ingest/crawler.py", "visit"): CRAWL,
    ("registry/ingest/examiner.py", "one"): CRAWL,
    ("registry/health/prober.py", "probe"): CRAWL,
    ("registry/claims.py", "_work"): LOOP,
    ("registry/served/registration.py", "_run"): LOOP,
    ("host/in_process.py", "_run"): SERVER,
    ("host/in_process.py", "receive"): CALLER,
    ("push/delivery.py", "deliver"): PUSH,
    ("engine/maintenance.py", "_try"): LOOP,
    ("store/bus/frames.py", "reconnect"): LOOP,
    ("store/postgres/background.py", "_run"): STORE_THREAD,
    ("database/postgres/database.py", "_write_retrying"): STORE_THREAD,
    ("database/database.py", "_run"): STORE_THREAD,
    ("database/sqlite/database.py", "_attempt"): STORE_THREAD,
    ("database/database.py", "publish"): COMMITTED,
    ("store/bus/subscriptions.py", "_tell"): COMMITTED,
}

# Functions that log a traceback. The last two are steps of a boundary in the same module.
LOGS = {"exception", "format_exc", "log_incident", "_failed", "handleError"}


def caught() -> Iterator[tuple[str, str, ast.ExceptHandler]]:
    """Yield each handler of any exception that does not raise again: file, function, handler."""
    for path in SOURCES:
        name = path.relative_to(ROOT / "src" / "parley").as_posix()
        yield from _in(ast.parse(path.read_text("utf-8")), name, "")


def _in(node: ast.AST, file: str, function: str) -> Iterator[tuple[str, str, ast.ExceptHandler]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler) and _takes_any(child):
            last = child.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield file, function, child
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else ""
        yield from _in(child, file, inside or function)


def _takes_any(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or bool(ANY & _names(handler.type))


def _names(node: ast.AST) -> set[str]:
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def test_any_exception_is_caught_at_a_boundary_only() -> None:
    found = {(file, function) for file, function, _ in caught()}
    assert sorted(found - BOUNDARIES.keys()) == [], "catch what is meant, or name the boundary here"
    assert sorted(BOUNDARIES.keys() - found) == [], "no longer there"


def test_what_a_boundary_catches_is_logged_or_handed_on() -> None:
    silent = [
        f"{file}:{handler.lineno} in {function}"
        for file, function, handler in caught()
        if not (LOGS | {handler.name}) & set().union(*map(_names, handler.body))
    ]
    assert silent == []


def test_nothing_suppresses_any_exception() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and _names(node.func) & {"suppress"}:
                assert not ANY & set().union(*map(_names, node.args)), f"{path}:{node.lineno}"
