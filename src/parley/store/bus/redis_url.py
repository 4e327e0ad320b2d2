"""The address of a Redis or Valkey: one server, a cluster, or a service that Sentinels watch.

No error quotes the URL, since it may hold a password.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FORMS = (
    "redis://user:password@host:6379, rediss://... with TLS, redis+unix:///path/to/socket, "
    "redis+cluster://host1:6379,host2:6379, redis+sentinel://host1:26379,host2:26379/service"
)
PREFIX = "parley:"
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 10.0
"""The time that a server may be silent; it is pinged more often."""

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
"""The slots of a cluster's nodes: first, last, node."""


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a bus. ``name`` is for people, without user and password.

    ``prefix`` is the prefix of every channel name, as a Redis may be shared. ``nodes`` are the
    server, some nodes of a cluster, or the Sentinels, which know the ``service``.
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
                "names none but 0; applications that share a Redis are separated by ?prefix="
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

    @asynccontextmanager
    async def client(
        self, node: Node, options: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Redis]:
        """Yield a client of a server, with other ``options`` for a Sentinel.

        It retries nothing: hints are lost with a connection, so each loss must be noticed. Raises
        ``RedisError`` and ``OSError``.
        """
        host, port = node
        client = Redis(
            **({"unix_socket_path": host} if self.is_socket else {"host": host, "port": port}),
            protocol=2,
            ssl=self.tls,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=SILENCE_SECONDS,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0, supported_errors=()),
            **(self.options if options is None else options),
        )
        try:
            yield client
        except RuntimeError as error:  # raised by uvloop for a connection that is already cut
            raise ConnectionError("the connection was lost at once") from error
        finally:
            with suppress(RedisError, OSError):  # the server may no longer answer
                await client.aclose()

    async def check_role(self, client: Redis) -> None:
        """Raise ``ConnectionError`` if Sentinels have made the server a replica meanwhile."""
        if self.kind == "sentinel" and (await client.role())[0] != b"master":
            raise ConnectionError("the server has become a replica of another")

    async def master(self) -> Node:
        """Ask the Sentinels which server to use. Raises ``RedisError`` or ``OSError``."""
        command = ("SENTINEL GET-MASTER-ADDR-BY-NAME", self.service)
        _, found = await self._ask(self.nodes, *command, options=self.sentinel_options)
        if not found:
            raise ConnectionError(f"the Sentinels know no service {self.service}")
        return found[0].decode(), int(found[1])

    async def slots(self, known: Sequence[Node]) -> Slots:
        """Ask a node of the cluster for its slots. Raises ``RedisError`` or ``OSError``."""
        node, found = await self._ask((*self.nodes, *known), "CLUSTER SLOTS")
        if not found:
            raise ConnectionError("the cluster has no slots assigned")
        return [
            (int(first), int(last), (owner[0].decode() or node[0], int(owner[1])))
            for first, last, owner, *_ in found
        ]

    async def _ask(
        self, nodes: Sequence[Node], *command: str, options: Mapping[str, Any] | None = None
    ) -> tuple[Node, Any]:
        """Return the first node with an answer, and the answer. Raises when none answers."""
        failure: Exception | None = None
        answer: Any = None
        for node in dict.fromkeys(nodes):
            try:
                async with self.client(node, options) as client:
                    answer = await client.execute_command(*command)  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                failure = error
                continue
            if answer:
                return node, answer
            failure = None
        if failure is not None:
            raise failure
        return nodes[0], answer


def _node(text: str, port: int) -> Node:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host has a name")
    return parts.hostname, parts.port or port


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(f"ssl_check_hostname is true or false, not {text!r}")
    return text.lower() in ("true", "1", "yes")
