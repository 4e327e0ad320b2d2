"""Loads the agents in the targets of ``parley serve``.

A target is ``path/to/file.py``, ``path/to/file.py:name``, ``package.module`` or
``package.module:name``, and may begin with the path to serve it under: ``/time=time_agent.py``. It
names an agent, or a mapping of paths to agents, as for ``parley.serve``. A tenant is a target after
the tenant's name: ``acme=shop.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage

if TYPE_CHECKING:
    from parley import Agent

_FILE = re.compile(r"(?P<location>.*\.py)(?::(?P<name>[A-Za-z_]\w*))?")
_MODULE = re.compile(r"(?P<location>[A-Za-z_][\w.]*)(?::(?P<name>[A-Za-z_]\w*))?")


class AgentTarget(NamedTuple):
    """A target: the path to serve it under, its file or module, and the agent's name there."""

    path: str
    location: str
    name: str
    is_file: bool


def parse_target(text: str) -> AgentTarget:
    """Return the parts of a target. Raises ``UsageFailure`` for any other form."""
    path, location = "", text
    if text.startswith("/") and "=" in text:
        path, _, location = text.partition("=")
    match = _FILE.fullmatch(location)
    is_file = match is not None
    match = match or _MODULE.fullmatch(location)
    if match is None:
        raise UsageFailure(
            f"{location!r} is neither a Python file nor a module",
            hint="give path/to/agent.py, path/to/agent.py:name or package.module:name",
        )
    return AgentTarget(path.rstrip("/"), match["location"], match["name"] or "", is_file)


def is_code(reference: str) -> bool:
    """Return whether a reference to an agent is a target, and not an address or an identifier."""
    if "://" in reference or reference.lower().startswith("urn:"):
        return False
    module = _MODULE.fullmatch(reference)
    return bool(_FILE.fullmatch(reference) or (module and module["name"]))


def load(targets: Sequence[str]) -> dict[str, Agent]:
    """Return the agents of the targets by their served paths.

    A single agent is served at the root, several agents under their own paths or else under their
    names; the paths of a mapping are below the target's path.

    Raises ``CommandFailure`` with the location of the error.
    """
    parsed = [parse_target(target) for target in targets]
    agents: dict[str, Agent] = {}
    for target in parsed:
        found = _found(target)
        if isinstance(found, Mapping):
            served = [(f"{target.path}{path}".rstrip("/"), agent) for path, agent in found.items()]
        else:
            root = "" if len(parsed) == 1 else f"/{_slug(found.name)}"
            served = [(target.path or root, found)]
        for path, agent in served:
            if path in agents:
                raise UsageFailure(
                    f"two agents would be served under {path or '/'}",
                    hint="give each its own path: "
                    f"/one={parsed[0].location} /two={target.location}",
                )
            agents[path] = agent
    return agents


def load_tenants(tenants: Mapping[str, str]) -> dict[str, Agent]:
    """Return the agents of the tenants, given by their targets, by name.

    Raises ``CommandFailure`` with the location of the error.
    """
    agents: dict[str, Agent] = {}
    for name, text in tenants.items():
        target = parse_tenant(name, text)
        found = _found(target)
        if isinstance(found, Mapping):
            raise UsageFailure(
                f"--tenant: {name!r} needs one agent, but {target.location} has {len(found)} by "
                "path",
                hint=f"name the agent: --tenant {name}={target.location}:NAME",
            )
        agents[name] = found
    return agents


def parse_tenant(name: str, location: object) -> AgentTarget:
    """Return the target of a tenant. Raises ``UsageFailure`` for another form."""
    if not isinstance(location, str):
        raise UsageFailure(
            f"tenants: {name!r} is not the target of an agent",
            hint=f'{name} = "path/to/agent.py", or {name} = "package.module:name"',
        )
    return parse_target(location)


def folders(targets: Sequence[str]) -> list[Path]:
    """Return the folders that contain the targets' code."""
    found: list[Path] = []
    for target in map(parse_target, targets):
        if target.is_file:
            found.append(Path(target.location).resolve().parent)
            continue
        spec = importlib.util.find_spec(target.location.partition(".")[0])
        found += [Path(location) for location in (spec and spec.submodule_search_locations) or ()]
        if spec and spec.origin and not spec.submodule_search_locations:
            found.append(Path(spec.origin).parent)
    return list(dict.fromkeys(found)) or [Path.cwd()]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "agent"


def _found(target: AgentTarget) -> Agent | Mapping[str, Agent]:
    from parley import Agent
    from parley.agent.uses import with_used

    module = _import_file(target) if target.is_file else _import_module(target)
    known = _served_in(module, Agent)
    if target.name:
        found = getattr(module, target.name, None)
        if _is_served(found, Agent):
            return found
        raise UsageFailure(
            f"{target.name!r} in {target.location} is not an Agent, nor a mapping of paths such as "
            "/echo to agents"
            if found is not None
            else f"there is no {target.name!r} in {target.location}",
            hint=_choices(target, known),
        )
    parts: set[int] = set()
    for each in known.values():
        agents = [each] if isinstance(each, Agent) else [*each.values()]
        if not isinstance(each, Agent):
            parts |= set(map(id, agents))
        with wrong_usage(f"{target.location}: "):
            parts |= {id(used) for agent in agents for used in with_used(agent.uses)}
    whole = [each for each in known.values() if id(each) not in parts]
    if len(whole) == 1:  # the other agents of the file are parts of it
        return whole[0]
    raise UsageFailure(
        f"there is more than one agent in {target.location}"
        if known
        else f"there is no agent in {target.location}",
        hint=_choices(target, known),
    )


def _served_in(module: ModuleType, kind: type[Agent]) -> dict[str, Agent | Mapping[str, Agent]]:
    """Return the public agents of a module, and its mappings of paths to agents, by name."""
    found: dict[int, tuple[str, Agent | Mapping[str, Agent]]] = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and _is_served(value, kind):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _is_served(value: object, kind: type[Agent]) -> TypeGuard[Agent | Mapping[str, Agent]]:
    if not isinstance(value, Mapping) or not value:
        return isinstance(value, kind)
    return all(
        isinstance(path, str) and path[:1] in ("", "/") and isinstance(agent, kind)
        for path, agent in value.items()
    )


def _choices(target: AgentTarget, known: Iterable[str]) -> str:
    names = [f"{target.location}:{name}" for name in known]
    if not names:
        return 'create an agent with: agent = parley.Agent(name="...", description="...")'
    return "say which: " + " or ".join(names)


def _import_file(target: AgentTarget) -> ModuleType:
    file = Path(target.location)
    path = file.resolve()
    if not file.is_file():
        raise UsageFailure(f"there is no file {target.location}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script, for imports from its folder
    plain = file.stem if file.stem.isidentifier() else f"agent_{_slug(file.stem)}"
    for name in (plain, f"_parley_{zlib.crc32(str(path).encode())}_{file.stem}"):
        loaded = sys.modules.get(name)
        if loaded is None:
            break
        origin = getattr(loaded, "__file__", None)
        if origin and Path(origin).resolve() == path:
            return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageFailure(f"{target.location} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(target, error) from error
    return module


def _import_module(target: AgentTarget) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(target.location)
    except ModuleNotFoundError as error:
        if error.name and target.location.startswith(error.name):
            raise UsageFailure(
                f"there is no module {target.location!r} here",
                hint="give a file instead (path/to/agent.py), or run parley where it can be "
                "imported",
            ) from None
        raise _broken(target, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(target, error) from error


def _broken(target: AgentTarget, error: BaseException) -> CommandFailure:
    """Return the failure for an error in the agent's code: its line and its reason."""
    if isinstance(error, SyntaxError):
        where, line, code = error.filename, error.lineno, (error.text or "").strip()
        what = f"{type(error).__name__}: {error.msg}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = Path(target.location).resolve() if target.is_file else None
        in_target = [f for f in frames if own and Path(f.filename).resolve() == own]
        in_code = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
        frame = (in_target or in_code or list(frames))[-1]
        where, line, code = frame.filename, frame.lineno, frame.line or ""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "the same command with --debug shows the whole traceback"
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"the agent needs {error.name}; is it installed in this environment?"
    return CommandFailure(
        "PARLEY_ERR_AGENT", f"{where}:{line}: {what}" + (f"\n  {code}" if code else ""), hint=hint
    )
