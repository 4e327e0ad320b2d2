"""The reference pages that are generated from structs and docstrings of the code.

python -m tests.house.reference_pages --write    write the pages
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import parley
import parley.client
import parley.client.auth
import parley.client.errors
import parley.compose
import parley.llm
import parley.push
import parley.testing
from parley.cli.app import COMMANDS, build
from parley.cli.output import failures
from parley.cli.settings.table import BY_FIELD
from parley.client.errors import ClientError
from parley.host.configuration import (
    OWNERS,
    SETTINGS,
    CertificateOptions,
    CommandOptions,
    EgressOptions,
)
from parley.host.options import AppKeywords, ServerOptions, options_of
from parley.model.errors import ERRORS, A2AError, PeerError
from parley.model.option import Option
from parley.observe.metrics import INSTRUMENTS, Instrument
from parley.server.settings import Settings
from tests.house.sizes import SOURCE

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def _table(head: str, rows: list[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows]) + "\n"


# -- the options of a server -------------------------------------------------------------------


def _option_row(name: str, option: Option) -> str:
    setting, flag, variable, default = SETTINGS.get(name), "", "", option.default
    if setting is not None and setting.option is option:
        flag = "" if option.flag is None else f"`{setting.flag}`"
        variable, default = f"`{setting.variable}`", setting.default_text
    switches_off = option.sets is False
    text = f"The flag: {option.help[0].lower()}{option.help[1:]}" if switches_off else option.help
    cells = map(_cell, (flag, variable, default, text))
    return f"| `{name}` | {' | '.join(cells)} |"


def _options(rows: Iterable[tuple[str, Option]]) -> str:
    head = "| Keyword | Flag | Variable | Default | Meaning |"
    return _table(head, [_option_row(*row) for row in rows])


def _of(*structs: type) -> list[tuple[str, Option]]:
    return [(name, SETTINGS[name].option) for name, its in OWNERS.items() if its in structs]


def server_options() -> str:
    """Return the page of a server's options, generated from the structs that declare them."""
    options = options_of(ServerOptions)
    app = AppKeywords.__annotations__
    return "\n".join(
        [
            OPTIONS_HEAD,
            "## `parley.asgi` and `parley.serve`\n",
            _options((name, options[name]) for name in options if name in app),
            "## `parley.serve` alone\n",
            _options((name, options[name]) for name in options if name not in app),
            "## `settings`\n\n`parley.Settings(...)`; [more about some](settings.md).\n",
            _options(options_of(Settings).items()),
            "## Parts of `egress` and `webhook_certificate`\n",
            _options(_of(EgressOptions, CertificateOptions)),
            "## `parley serve`, the command\n",
            _options(_of(CommandOptions)),
        ]
    )


OPTIONS_HEAD = """\
# Options of a server

Each option is a keyword of `parley.serve` and `parley.asgi`, a flag of `parley serve`, a variable,
and a line of `parley.toml` with the name of the keyword; the first that has a value counts. Secrets
have no flag, and Python objects have only a keyword.

A list in a variable is separated by spaces, limits by semicolons; `1` or `0` sets a flag. A
`PARLEY_PORT` of Kubernetes (`tcp://...`) is ignored.

## parley.toml

```toml
targets = ["agent.py"]
store = "sqlite:///tasks.db"
url = "https://agents.example.com"
drain = "30s"
limits = ["60/minute per caller", "20 streams per caller"]
max_parts = 50
page = false

[restrict]
docs = "authenticated"
health = ["10.0.0.0/8"]

[tenants]
acme = "shop.py"
```

`parley serve` reads the file in the current folder, or the file that `--config` or `PARLEY_CONFIG`
names; paths in it are relative to the current folder. `parley.serve(agent, config="parley.toml")`
reads it together with the variables. Without `config`, `parley.serve` and `parley.asgi` read only
the variables of egress, signing keys, the secret key, the publisher and the namespace. `parley dev`
and `parley registry serve` read no file.

`parley config show` lists each value with its source, secrets hidden. `parley config check [FILE]`
lists all problems with file and line: unknown names with the nearest right one, impossible values,
values that contradict each other. The server does not start with any of them.

## Reload

SIGHUP (`systemctl reload`, `kill -HUP`) makes `parley serve` and `parley.serve` read again, and log
in one line:

- certificates and keys, which are also read within seconds of a change;
- `limits` of the file. The first limit of output or running time needs a restart;
- `log_level` of the file, for `parley serve`. Requests are logged if it was `debug` at the start.

The log names other changed settings, which need a restart. A wrong file changes nothing, and its
errors are in the log. Windows has no SIGHUP, and another ASGI server handles its own.

The default store of `parley.asgi` is `memory:`. Bindings have [further
options](../guides/extend-parley.md). Made from the code
(`parley.host.options.ServerOptions`).
"""


# -- errors ------------------------------------------------------------------------------------


def errors() -> str:
    """Return the page of errors and exit statuses."""
    return "\n".join(
        [
            ERRORS_HEAD,
            _table(
                "| Error, reason | JSON-RPC | HTTP | gRPC | Meaning | What to do |",
                [_a2a_row(error) for error in (*ERRORS, PeerError)],
            ),
            CLIENT_HEAD,
            _table("| Error | Meaning | What to do |", [_row(e) for e in _client_errors()]),
            "## In the code of an agent\n",
            _table("| Error | Meaning | What to do |", [_row(e) for e in _own_errors()]),
            STATUS_HEAD,
            _table("| Status | Meaning | What to do |", list(_status_rows())),
            CODES_HEAD,
            _table("| Status | Codes |", list(_code_rows())),
        ]
    )


ERRORS_HEAD = """\
# Errors

Made from the docstrings of `parley.model.errors`,
`parley.client.errors` and `parley.cli.output.failures`.

## Errors of A2A

An agent answers with these; the client raises them as `parley.A2AError`. Each has the `message`,
`violations` (wrong fields), `retry_after` and `challenges`. The reason is in `ErrorInfo`, in every
binding: read it first, because several errors share a status.
"""

CLIENT_HEAD = """\
## Errors of the client

A `parley.ClientError` is a call without an answer of the agent. "Nothing was sent" means that
another attempt cannot repeat work.
"""

STATUS_HEAD = """\
## Exit statuses of `parley`

The status reports the command, not the task: 0 if the answer is shown, also of a failed task.
"""

CODES_HEAD = """\
With `-o json` an error is an object with a `code`: the name of an error of A2A, or one of these
([when](cli-compliance.md#error-codes)).
"""


def _paragraphs(documented: object) -> list[str]:
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    return [_prose(paragraph) for paragraph in inspect.cleandoc(text).split("\n\n")]


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def said(documented: object) -> tuple[str, str]:
    """Return the meaning of an error and its remedy: the first two paragraphs of its docstring."""
    meaning, to_do, *_ = *_paragraphs(documented), ""
    return meaning, to_do


def _row(error: type[Exception]) -> str:
    meaning, to_do = said(error)
    return f"| `{error.__name__}` | {_cell(meaning)} | {_cell(to_do)} |"


def _a2a_row(error: type[A2AError]) -> str:
    meaning, to_do = said(error)
    code = "any" if error is PeerError else str(error.code)
    return (
        f"| `{error.__name__}` `{error.reason}` | {code} | {error.http_status} "
        f"| `{error.grpc_status}` | {_cell(meaning)} | {_cell(to_do)} |"
    )


def _client_errors() -> list[type[Exception]]:
    defined = vars(parley.client.errors).values()
    own = [each for each in defined if inspect.isclass(each) and issubclass(each, ClientError)]
    return [*own, parley.client.auth.TokenRefused]


def _own_errors() -> list[type[Exception]]:
    found = [getattr(parley, name) for name in sorted(parley.__all__)]
    return [
        each
        for each in found
        if inspect.isclass(each)
        and issubclass(each, Exception)
        and not issubclass(each, A2AError)
        and each is not ClientError
        and each.__module__ != parley.client.errors.__name__
    ]


def documented_errors() -> list[object]:
    """Return all errors that the page describes by two paragraphs."""
    return [*ERRORS, PeerError, *_client_errors(), *_own_errors(), *_statuses().values()]


@cache
def _statuses() -> dict[int, str]:
    """Return the exit statuses, each with the text below its constant."""
    body = ast.parse(inspect.getsource(failures)).body
    return {
        getattr(failures, line.targets[0].id): below.value.value
        for line, below in pairwise(body)
        if isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and isinstance(line.value, ast.Constant)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _status_rows() -> Iterator[str]:
    for status, text in _statuses().items():
        meaning, to_do = said(text)
        yield f"| {status} | {_cell(meaning)} | {_cell(to_do)} |"


def _code_rows() -> Iterator[str]:
    codes = dict(failures.EXIT_STATUSES)
    for path in SOURCE.rglob("*.py"):
        for code in re.findall(r'"(PARLEY_ERR_[A-Z_]+)"', path.read_text("utf-8")):
            codes.setdefault(code, failures.FAILED)
    for status in sorted(set(codes.values())):
        named = sorted(code for code, its in codes.items() if its == status)
        yield f"| {status} | {', '.join(f'`{code}`' for code in named)} |"


# -- the commands ------------------------------------------------------------------------------

COMMANDS_HEAD = """\
# All commands

The commands of `parley` with their arguments and options, made from the code.
[The command line](command-line.md) explains them; `parley COMMAND --help` has defaults, variables
and examples; [server options](server-options.md) has the options of `parley serve`.

## Options of many commands
"""
SHARED = 10
"""An option of this many commands is listed once."""


def commands() -> str:
    """Return the page of all commands."""
    leaves = {group: list(_leaves(names)) for group, names in COMMANDS.items()}
    every = [command for group in leaves.values() for _, command in group]
    uses = Counter(_flag(option) for command in every for option in _options_of(command))
    shared = {flag for flag, count in uses.items() if count >= SHARED}
    known = {_flag(o): o for command in reversed(every) for o in _options_of(command)}
    told = {each.spellings[-1]: each.help for each in reversed(BY_FIELD.values())}
    lines = [
        line
        for flag, option in sorted(known.items())
        if flag in shared
        for line in _about(f"{_shown(option)}: ", told.get(flag) or option.help)
    ]
    parts = [COMMANDS_HEAD, _text(lines)]
    for group, found in leaves.items():
        parts.append(f"## {group}\n")
        parts.append(_text([line for path, each in found for line in _lines(path, each, shared)]))
    return "\n".join(parts)


def _leaves(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield each command of these names or groups, with its words."""

    def inside(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, each in command.commands.items():
                yield from inside(each, f"{path} {name}")
        elif not command.hidden:
            yield path, command

    for name in names:
        application: Any = typer.main.get_command(build([name]))
        yield from inside(application.commands[name], name)


def _options_of(command: Any) -> list[Any]:
    return [o for o in command.params if o.param_type_name == "option" and not o.hidden]


def _flag(option: Any) -> str:
    return str(option.opts[-1])


def _shown(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return ", ".join(option.opts) + value


def _lines(path: str, command: Any, shared: set[str]) -> Iterator[str]:
    taken = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    yield " ".join(["parley", path, *taken])
    yield from _about(" " * 4, command.help)
    own = [_shown(option) for option in _options_of(command) if _flag(option) not in shared]
    if own and path != "serve":
        yield from _packed(" " * 4, own, "", "; ", " " * 4)


def _about(begin: str, text: str | None) -> list[str]:
    """Return the first paragraph of a help text."""
    return _packed(begin, _paragraph(text).split(), "", " ", " " * 4)


def _text(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```\n"])


# -- the metrics -------------------------------------------------------------------------------

METRICS_HEAD = """\
# Metrics

What [`--metrics`](../guides/observe.md#metrics) counts, as `/metrics` names it. OpenTelemetry has
dots: `parley_turn_duration_seconds` is `parley.turn.duration`, the label `error_type` is
`error.type`. Histograms have series with `_bucket`, `_sum` and `_count`.
"""
METRICS_FOOT = """
Without `--workers`, `/metrics` also has `process_*`: processor time, memory, open files.

Made from `parley.observe.metrics.INSTRUMENTS`.
"""


def metrics() -> str:
    """Return the page of the metrics."""
    rows = [_metric_row(each) for each in INSTRUMENTS.values()]
    table = _table("| Name | Kind | Labels | Meaning |", rows)
    return "\n".join([METRICS_HEAD, table]) + METRICS_FOOT


def _metric_row(each: Instrument) -> str:
    name = each.text_name + ("_total" if each.kind == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{name}` | {each.kind} | {_cell(labels)} | {_cell(each.help)} |"


# -- the interface of Python -------------------------------------------------------------------

API_HEAD = """\
# The Python interface

Every public name with its signature, made from the code. `name: type` below a class is an attribute
or a property. [Errors](errors.md) has the exceptions, [settings](settings.md) the fields of
`Settings`, [server options](server-options.md) the keywords of `serve` and `asgi`;
[the turn](turn.md), [the client](client.md) and [options of an agent](agent-options.md) have the
rules.
"""

SECTIONS = {
    "Agents": ("parley.agent", "parley.engine", "parley.mcp", "parley.envelope"),
    "Serving": ("parley.host", "parley.server"),
    "Calling": ("parley.client", "parley.registry", "parley.extensions"),
    "Messages, tasks and cards": ("parley.model",),
}
PACKAGES = (parley.client, parley.compose, parley.llm, parley.push, parley.testing)
WIDTH = 100
SHOWN_ELSEWHERE = {"Settings"}
NOT_MADE = {
    "BlockingTurn", "EventStream", "FileStream", "RemoteAgent", "SyncEventStream",
    "SyncRemoteAgent", "TestTime", "TestedAgent", "Turn", "TurnFacts",
}  # fmt: skip
"""Classes that only Parley instantiates."""


def api() -> str:
    """Return the page of the public names."""
    parts = [API_HEAD]
    shown: set[object] = set()
    for title, homes in SECTIONS.items():
        parts += [f"## {title}\n", *_section(parley, homes, shown)]
    for package in PACKAGES:
        parts += [f"## `{package.__name__}`\n", *_section(package, ("parley.",), shown)]
    return "\n".join(parts)


def unplaced() -> set[str]:
    """Return the public names that are missing from the page."""
    written = api()
    return {
        name
        for name in parley.__all__
        if not re.search(rf"(?:class|def) {name}\b", written) and not _is_error(name)
    }


def _is_error(name: str) -> bool:
    value = getattr(parley, name)
    return inspect.isclass(value) and issubclass(value, Exception)


def _fence(text: str) -> str:
    return f"```pyi\n{text}\n```\n"


def _section(package: ModuleType, homes: tuple[str, ...], shown: set[object]) -> Iterator[str]:
    """Yield the functions of a package together, and each class below a heading."""
    functions = []
    for name in package.__all__:
        value = getattr(package, name)
        is_new = package is parley or name not in parley.__all__
        if not is_new or not getattr(value, "__module__", "").startswith(homes):
            continue
        if inspect.isfunction(value):
            made = inspect.unwrap(value)  # the function that supplies the signature
            node = _definition(made.__module__, made.__name__)
            functions.append(_function(node, name, documented=value.__doc__))
    if functions:
        yield _fence("\n".join(functions))
    for name in package.__all__:
        value = getattr(package, name)
        if not inspect.isclass(value) or issubclass(value, Exception):
            continue
        for each in _bases(value) if value.__module__.startswith(homes) else ():
            if each not in shown:
                shown.add(each)
                named = name if each is value else each.__name__
                yield f"### {named}\n"
                yield _fence(_class(each, named))


@cache
def _module(name: str) -> dict[str, ast.AST]:
    tree = ast.parse(inspect.getsource(importlib.import_module(name)))
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _definition(module: str, name: str) -> ast.AST:
    return _module(module)[name]


def _paragraph(documented: str | None) -> str:
    return " ".join((documented or "").split("\n\n")[0].split())


def _sentence(documented: str | None) -> str:
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", _paragraph(documented))[0]


def _quoted(text: str, indent: str) -> list[str]:
    return _packed(f'{indent}"""', [*text.split(" ")], '"""', " ", indent) if text else []


def _packed(begin: str, pieces: list[str], end: str, between: str, indent: str) -> list[str]:
    """Return pieces in as few lines as possible; lines after the first are indented."""
    lines, line = [], begin
    for at, piece in enumerate(pieces):
        last = at + 1 == len(pieces)
        piece += end if last else between
        if len(line + piece.rstrip()) > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += piece
    return [*lines, line.rstrip()]


def _function(node: ast.AST, name: str, indent: str = "", *, documented: str | None = None) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if name == "__init__":
        returned = ""
    given = _parameters(node.args) or [""]
    lines = _packed(f"{indent}{keyword} {name}(", given, f"){returned}", ", ", indent + " " * 8)
    return "\n".join(
        [*lines, *_quoted(_sentence(documented or ast.get_docstring(node)), indent + " " * 4)]
    )


def _parameters(given: ast.arguments) -> list[str]:
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
    found = []
    for at, (each, default) in enumerate(zip(plain, defaults, strict=True), 1):
        found.append(_parameter(each, default))
        if at == len(given.posonlyargs):
            found.append("/")
    if given.vararg:
        found.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [
        _parameter(each, default)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        found.append(f"**{_parameter(given.kwarg, None)}")
    return [each for each in found if each not in ("self", "cls")]


def _parameter(given: ast.arg, default: ast.expr | None) -> str:
    annotated = ast.unparse(given.annotation) if given.annotation else ""
    if default is None:
        return f"{given.arg}: {annotated}" if annotated else given.arg
    value = ast.unparse(default)
    if isinstance(default, ast.Constant) and type(default.value).__name__ == annotated:
        return f"{given.arg}={value}"  # the value shows the type
    return f"{given.arg}: {annotated} = {value}"


def _class(value: type, name: str) -> str:
    """Return a class with the members that the earlier classes in ``_bases`` lack."""
    members = {}
    for base in reversed(value.__mro__):
        if base is value or base.__name__.startswith("_"):
            members.update(_own_members(base))
    if name in SHOWN_ELSEWHERE:
        members.clear()
    if name in NOT_MADE:
        members.pop("__init__", None)
    shown = ", ".join(base.__name__ for base in value.__bases__ if base in _bases(value))
    head = f"class {name}({shown}):" if shown else f"class {name}:"
    body = [*_quoted(_paragraph(value.__doc__), "    "), *members.values()] or ["    ..."]
    return "\n".join([head, *body])


@cache
def _own_members(value: type) -> dict[str, str]:
    if not value.__module__.startswith("parley."):
        return {}
    defined = _module(value.__module__).get(value.__name__)
    return dict(_members(defined)) if isinstance(defined, ast.ClassDef) else {}


def _bases(value: type) -> list[type]:
    """Return a class, after the classes of Parley from which it inherits members."""
    return [
        base
        for base in reversed(value.__mro__)
        if base is value
        or (_own_members(base).keys() - {"__init__"} and not base.__name__.startswith("_"))
    ]


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            if not each.target.id.startswith("_") and "ClassVar" not in ast.unparse(each):
                yield each.target.id, f"    {ast.unparse(each)}"
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield ast.unparse(each.targets[0]), f"    {ast.unparse(each)}"
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = {ast.unparse(mark) for mark in each.decorator_list}
            if (each.name.startswith("_") and each.name != "__init__") or "overload" in marks:
                continue
            if "property" in marks or "cached_property" in marks:
                returned = ast.unparse(each.returns) if each.returns else "Any"
                text = [
                    f"    {each.name}: {returned}",
                    *_quoted(_sentence(ast.get_docstring(each)), " " * 4),
                ]
                yield each.name, "\n".join(text)
            elif not any(mark.endswith("setter") for mark in marks):
                kind = marks & {"classmethod", "staticmethod"}
                above = "".join(f"    @{mark}\n" for mark in kind)
                yield each.name, above + _function(each, each.name, " " * 4)


PAGES: dict[str, Callable[[], str]] = {
    "api.md": api,
    "commands.md": commands,
    "errors.md": errors,
    "metrics.md": metrics,
    "server-options.md": server_options,
}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make(), "utf-8")
