"""Where a Redis (or Valkey) is, from its URL: one server, a cluster, or what Sentinels watch.

What an error says never holds the URL, which may hold a password.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError, RedisError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio.connection import AbstractConnection

FORMS = (
    "redis://user:password@host:6379, rediss://... with TLS, redis+unix:///path/to/socket, "
    "redis+cluster://host1:6379,host2:6379, redis+sentinel://host1:26379,host2:26379/service"
)
PREFIX = "parley:"
CONNECT_SECONDS = 5.0
SILENCE = 10.0
"""For how many seconds a server may say nothing, which is asked something every few."""

Kind = Literal["server", "cluster", "sentinel"]

_KINDS: dict[str, Kind] = {
    "": "server",
    "unix": "server",
    "cluster": "cluster",
    "sentinel": "sentinel",
}
_QUERY = {
    "prefix",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
    "sentinel_username",
    "sentinel_password",
}

Node = tuple[str, int]
"""Host and port; a path and 0 for a socket."""

Slots = Sequence[tuple[int, int, Node]]
"""Which node has which slots of a cluster: first, last, node."""


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bus is. ``name`` is what people are told, without user and password.

    ``prefix`` begins the name of every channel, as a Redis may be shared. ``nodes`` are where to
    ask first: the server, some of a cluster, or Sentinels, which know the ``service``.
    """

    kind: Kind
    nodes: tuple[Node, ...]
    service: str
    prefix: str
    name: str
    options: Mapping[str, Any]
    sentinel_options: Mapping[str, Any]
    tls: bool
    is_socket: bool

    def __repr__(self) -> str:
        return f"<RedisAddress {self.name}>"

    @classmethod
    def of(cls, url: str) -> RedisAddress:
        """Return the address that a URL names. Raises ``ValueError``, without a password."""
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=False))
            user, _, hosts = parts.netloc.rpartition("@")
            username, _, password = map(unquote, user.partition(":"))
            scheme, _, form = parts.scheme.partition("+")
            port = 26379 if form == "sentinel" else 6379
            nodes = tuple([_node(host, port) for host in hosts.split(",") if host])
        except ValueError:
            raise ValueError(f"the address of a Redis bus is one of {FORMS}") from None
        path = unquote(parts.path)
        if scheme not in ("redis", "rediss") or form not in _KINDS:
            raise ValueError(f"the address of a Redis bus is one of {FORMS}")
        if unknown := sorted(query.keys() - _QUERY):
            raise ValueError(
                f"a Redis bus knows nothing of {', '.join(unknown)}; its options are "
                + ", ".join(sorted(_QUERY))
            )
        is_socket, tls = form == "unix", scheme == "rediss"
        if is_socket:
            nodes = ((path, 0),)
        service = path.strip("/") if form == "sentinel" else ""
        if form == "sentinel" and not service:
            raise ValueError(
                "a Redis bus at Sentinels names their service: redis+sentinel://.../it"
            )
        if not form and path.strip("/") not in ("", "0"):
            raise ValueError(
                "the channels of a Redis belong to all its databases, so the address of a bus "
                "names none but 0; what shares a Redis is told apart by ?prefix="
            )
        if not nodes or (not form and len(nodes) > 1) or (is_socket and (tls or not path)):
            raise ValueError(f"the address of a Redis bus is one of {FORMS}")
        login = {"username": username or None, "password": password or None}
        options: dict[str, Any] = {name: value for name, value in login.items() if value}
        sentinel_options: dict[str, Any] = {
            name.removeprefix("sentinel_"): value
            for name, value in query.items()
            if name.startswith("sentinel_")
        }
        secured: dict[str, Any] = {n: v for n, v in query.items() if n.startswith("ssl_")}
        if secured and not tls:
            raise ValueError(f"{', '.join(secured)}: only rediss:// has TLS")
        if "ssl_check_hostname" in secured:
            secured["ssl_check_hostname"] = _flag(secured["ssl_check_hostname"])
        where = ",".join([host + (f":{port}" if port else "") for host, port in nodes])
        return cls(
            kind=_KINDS[form],
            nodes=nodes,
            service=service,
            prefix=query.get("prefix", PREFIX),
            name=f"{parts.scheme}://{where}" + (f"/{service}" if service else ""),
            options=options | secured,
            sentinel_options=sentinel_options | secured,
            tls=tls,
            is_socket=is_socket,
        )

    async def connect(self, node: Node, *, to_sentinel: bool = False) -> AbstractConnection:
        """Connect to a server. Raises ``RedisError`` or ``OSError``."""
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": SILENCE,
            **(self.sentinel_options if to_sentinel else self.options),
        }
        connection: AbstractConnection
        if self.is_socket:
            connection = UnixDomainSocketConnection(path=node[0], **options)
        else:
            made = SSLConnection if self.tls else Connection
            connection = made(host=node[0], port=node[1], socket_keepalive=True, **options)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            if self.kind == "sentinel" and not to_sentinel:
                await connection.send_command("ROLE")
                role = await connection.read_response()
                if role[0] != b"master":
                    raise ConnectionError("the server is a replica of another by now")
        except RuntimeError as error:  # what uvloop says of a line that was cut by then
            await connection.disconnect(nowait=True)
            raise ConnectionError("the connection was lost at once") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def master(self) -> Node:
        """Ask the Sentinels which server to use. Raises ``RedisError`` or ``OSError``."""
        found = await self._ask(
            self.nodes, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service, to_sentinel=True
        )
        if not found:
            raise ConnectionError(f"the Sentinels know no service {self.service}")
        return found[0].decode(), int(found[1])

    async def slots(self, known: Sequence[Node]) -> Slots:
        """Ask a node of the cluster who has which slots. Raises ``RedisError`` or ``OSError``."""
        found = []
        async for node, reply in self._asked((*self.nodes, *known), "CLUSTER", "SLOTS"):
            for first, last, owner, *_ in reply:
                host = owner[0].decode() if owner[0] else node[0]
                found.append((int(first), int(last), (host, int(owner[1]))))
            break
        if not found:
            raise ConnectionError("the cluster has no slots assigned")
        return found

    async def _ask(self, nodes: Sequence[Node], *command: str, to_sentinel: bool) -> Any:
        async for _, reply in self._asked(nodes, *command, to_sentinel=to_sentinel):
            if reply:
                return reply
        return None

    async def _asked(
        self, nodes: Sequence[Node], *command: str, to_sentinel: bool = False
    ) -> AsyncIterator[tuple[Node, Any]]:
        """Yield what nodes reply, one after the other. Raises when none does."""
        failure: Exception | None = None
        has_reply = False
        for node in dict.fromkeys(nodes):
            try:
                async with self._connected(node, to_sentinel) as connection:
                    await connection.send_command(*command)
                    reply = await connection.read_response()
            except (RedisError, OSError) as error:
                failure = error
                continue
            has_reply = True
            yield node, reply
        if failure is not None and not has_reply:
            raise failure

    @asynccontextmanager
    async def _connected(self, node: Node, to_sentinel: bool) -> AsyncIterator[AbstractConnection]:
        connection = await self.connect(node, to_sentinel=to_sentinel)
        try:
            yield connection
        finally:
            await connection.disconnect(nowait=True)


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host has a name")
    return parts.hostname, parts.port or port


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(f"ssl_check_hostname is true or false, not {text!r}")
    return text.lower() in ("true", "1", "yes")
