"""The checks of ``parley doctor``: each yields its findings, with remedies of problems."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from parley import __version__
from parley.cli.calls.agent_call import AgentCall
from parley.cli.loading import load
from parley.cli.output.failures import CommandFailure
from parley.cli.output.text import one_line
from parley.cli.settings.server import unknown_variables
from parley.client.errors import ClientError
from parley.host.egress import read_egress
from parley.host.options import scheme_of, shown
from parley.host.store_urls import POSTGRES, open_admin, sqlite_path
from parley.model.distribution import DISTRIBUTION, install_command
from parley.model.errors import A2AError
from parley.security.signing.keys import SigningKeys, SigningKeysInvalid
from parley.server.sockets import ListenError, listen
from parley.store.protocols.errors import StoreError

FREE = 1024**3  # bytes; with less, a store may soon be full
SKEW = 5.0  # seconds; tokens and leases bear a little
NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "glusterfs", "ceph")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


class Finding(msgspec.Struct, frozen=True):
    """The finding of a check, and the remedy of a problem."""

    subject: str
    state: Literal["ok", "note", "problem"]
    text: str
    remedy: str = ""


Findings = Iterator[Finding]


def python() -> Findings:
    """Check the interpreter."""
    said = f"{platform.python_implementation()} {platform.python_version()}"
    said += f" on {platform.system()} {platform.machine()}"
    yield Finding("python", "ok", said)


def packages() -> Findings:
    """Check the installed packages against the bounds of the distribution."""
    try:
        wanted = [each for text in requires(DISTRIBUTION) or () if (each := _requirement(text))]
    except PackageNotFoundError:
        text = f"parley {__version__} runs from its source, so its extras are not known"
        yield Finding("packages", "note", text)
        return
    extras: dict[str, list[str]] = {}
    for name, bounds, extra in wanted:
        try:
            found = version(name)
        except PackageNotFoundError:
            extras.setdefault(extra, []).append(name)
            continue
        extras.setdefault(extra, [])
        if broken := [each for each in bounds if not _holds(found, *each)]:
            need = " and ".join("".join(each) for each in broken)
            said = f"{name} is {found}, and Parley needs {need}"
            remedy = install_command(extra) if extra else f"pip install {DISTRIBUTION}"
            yield Finding("packages", "problem", said, remedy)
    if lacking := extras.pop("", []):
        said = f"{', '.join(lacking)} is not installed"
        yield Finding("packages", "problem", said, f"pip install {DISTRIBUTION}")
    have = [extra for extra, missing in extras.items() if not missing]
    yield Finding("packages", "ok", f"parley {__version__} with {', '.join(have) or 'no extra'}")


def _requirement(text: str) -> tuple[str, list[tuple[str, str]], str] | None:
    """Return the name, the bounds and the extra of a requirement; ``None`` for other systems."""
    wanted, _, marker = text.partition(";")
    system = re.search(r"sys_platform\s*(==|!=)\s*['\"](\w+)['\"]", marker)
    if system and (system[1] == "==") != (system[2] == sys.platform):
        return None
    name = re.match(r"\s*([\w.-]+)", wanted)
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
    if name is None:
        return None
    return name[1], re.findall(r"(>=|<=|==|<|>)\s*([\w.]+)", wanted), extra[1] if extra else ""


def _holds(found: str, sign: str, bound: str) -> bool:
    width = bound.count(".") + 1
    own, limit = ([*map(int, re.findall(r"\d+", each))][:width] for each in (found, bound))
    order = (own > limit) - (own < limit)
    if sign in ("<", ">"):
        return order == (1 if sign == ">" else -1)
    return order == 0 or (sign != "==" and order == (1 if sign == ">=" else -1))


def port(number: int) -> Findings:
    """Check whether a server can listen on a port, and which agent does."""
    try:
        for each in listen("127.0.0.1", number):
            each.close()
        yield Finding("port", "ok", f"{number} is free")
    except ListenError as error:
        name = asyncio.run(_agent_at(f"http://127.0.0.1:{number}"))
        said = f"{number} is used by {name}" if name else str(error)
        yield Finding("port", "note" if name else "problem", said, "another: --port 0 takes one")


async def _agent_at(url: str) -> str:
    from parley.client import connect

    try:
        async with connect(url, retries=0, timeout=3, auth=False) as agent:
            return f"a server of the agent {one_line(agent.card.name)}"
    except (A2AError, ClientError) as error:
        served = re.search(r"agents? (at|on|here)", str(error))
        return "a Parley server" if served else ""


def store(url: str) -> Findings:
    """Check the store: reached, writable, of the right schema, with room, on a fitting disk."""
    if url.startswith("memory:"):
        yield Finding(
            "store", "note", "memory: ends with the process", "--store sqlite:///tasks.db"
        )
        return
    path = sqlite_path(url)
    if path is not None:
        yield from _disk(path.resolve())
    try:
        admin = open_admin(url)
        schema = admin.schema()
    except (StoreError, ValueError) as error:
        yield Finding("store", "problem", str(error), "is the address right, and may you use it?")
        return
    name = shown(url)
    if not schema.version:
        yield Finding("store", "note", f"{name} does not exist yet", "parley serve creates it")
    elif schema.missing:
        said = f"{name} has schema version {schema.version}, and this Parley needs "
        said += str(schema.missing[-1].version)
        yield Finding("store", "problem", said, f"parley store migrate --store {name}")
    else:
        yield Finding("store", "ok", f"{name} has the schema of this version, {schema.version}")
    if scheme_of(url) in POSTGRES and schema.version:
        yield from _clock("the store", time.time() - admin.now() / 1000)
        if not os.environ.get("PARLEY_SECRET_KEY"):
            said = "PARLEY_SECRET_KEY is not set: secrets of webhooks are stored as they are"
            yield Finding("keys", "note", said, "set the same key for all replicas")


def _disk(path: Path) -> Findings:
    folder = next(each for each in path.parents if each.is_dir())
    if not os.access(path if path.exists() else folder, os.W_OK):
        yield Finding("store", "problem", f"{path} cannot be written", "chown or chmod it")
    free = shutil.disk_usage(folder).free
    said = f"{free / FREE:.1f} GiB are free at {folder}"
    yield Finding("disk", *(("ok", said) if free > FREE else ("problem", said, "make room")))
    if (kind := _file_system(folder)) in NETWORK_DISKS:
        said = f"{folder} is on {kind}, where SQLite's locks and its WAL are not safe"
        yield Finding("disk", "problem", said, "a local disk, or PostgreSQL")


def _file_system(folder: Path) -> str:
    """Return the kind of the file system of a folder; empty where the system does not say."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    mounts = [(point, kind) for _, point, kind, *_ in (line.split() for line in lines)]
    below = [each for each in mounts if folder.is_relative_to(each[0].replace("\\040", " "))]
    return max(below, key=lambda each: len(each[0]), default=("", ""))[1]


def keys() -> Findings:
    """Check the signing keys."""
    try:
        found = SigningKeys.load()
    except (SigningKeysInvalid, OSError) as error:
        yield Finding("keys", "problem", str(error), "parley keys generate makes new ones")
        return
    if found is None:
        yield Finding("keys", "note", "there are no signing keys: cards are not signed")
    else:
        yield Finding("keys", "ok", f"{len(found.signers)} keys sign")


def variables(environment: Mapping[str, str]) -> Findings:
    """Check the names of environment variables: a wrong name has no effect, and no error."""
    unknown = unknown_variables(environment)
    for name, near in unknown.items():
        remedy = f"did you mean {near}?" if near else "parley config show lists the names"
        yield Finding("variables", "problem", f"{one_line(name)} is read by nothing", remedy)
    if not unknown:
        ours = sorted(each for each in environment if each.startswith(("PARLEY_", "A2ACLI_")))
        yield Finding("variables", "ok", f"{', '.join(ours) or 'none'}")


def terminal() -> Findings:
    """Check the terminal."""
    encoding = (sys.__stdout__.encoding if sys.__stdout__ else "") or "none"
    said = f"TERM is {os.environ.get('TERM') or 'not set'}, the encoding {encoding}"
    if encoding.lower().replace("-", "") != "utf8":
        yield Finding("terminal", "problem", said, "PYTHONUTF8=1, or a locale with UTF-8")
    else:
        yield Finding("terminal", "ok", said)


def egress() -> Findings:
    """Check names, proxies, and the policy for requests that foreign data causes."""
    if proxies := [each for each in PROXIES if os.environ.get(each)]:
        said = f"{', '.join(proxies)} is set; calls of agents do not use it"
        yield Finding("egress", "note", said, "--proxy, or A2ACLI_PROXY, if calls need one")
    try:
        policy = read_egress()
    except ValueError as error:
        yield Finding("egress", "problem", str(error))
        return
    said = "foreign addresses may be public ones" if policy.public else "only allowed places"
    yield Finding("egress", "ok", f"{said}; private networks are closed unless allowed")


def local_agent(target: str) -> Findings:
    """Check an agent's file or module."""
    try:
        found = load([target])
    except CommandFailure as failure:
        yield Finding("agent", "problem", failure.message, failure.hint or "")
        return
    for agent in found.values():
        yield Finding("agent", "ok", f"{agent.name} has {len(agent.skills)} skills")


def remote_agent(call: AgentCall) -> Findings:
    """Check that an agent's name is known, that it answers, and that its clock is right."""
    address = urlsplit(call.address)
    if address.hostname:
        try:
            socket.getaddrinfo(address.hostname, address.port or 443)
        except OSError as error:
            said = f"the name {address.hostname} has no address: {error}"
            yield Finding("agent", "problem", said, "is it spelled right, and is DNS reached?")
            return
    try:
        card, date = asyncio.run(_asked(call))
    except (A2AError, ClientError) as error:
        failure = call.failure(error)
        yield Finding("agent", "problem", failure.message, failure.hint or "")
        return
    yield Finding("agent", "ok", card)
    if date:
        yield from _clock("the agent", time.time() - parsedate_to_datetime(date).timestamp())


async def _asked(call: AgentCall) -> tuple[str, str]:
    async with call.agent() as agent:
        card = agent.card
        said = f"{one_line(card.name)} {card.version} answers in {agent.version}"
        if card.security_requirements and not agent.has_credentials:
            said += "; it requires credentials, and there is no login"
    if "://" not in call.address:
        return said, ""
    async with call.http() as http:
        reply = await http.send("GET", call.address, {}, b"", timeout=5)
    return said, reply.headers.get("date", "")


def _clock(whose: str, ahead: float) -> Findings:
    if abs(ahead) > SKEW:
        said = f"this clock differs from the clock of {whose} by {abs(ahead):.0f} s"
        yield Finding("clock", "problem", said, "synchronise it (NTP): tokens would seem expired")
    else:
        yield Finding("clock", "ok", f"it agrees with {whose}")
