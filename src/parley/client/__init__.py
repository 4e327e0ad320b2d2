"""The bindings, calling."""

from parley.client.calls.difference import news
from parley.client.calls.stream import EventStream
from parley.client.connection import Connection, connect
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.client.sync import SyncEventStream, SyncRemoteAgent, connect_sync

__all__ = [
    "ClientError",
    "Connection",
    "EventStream",
    "RemoteAgent",
    "SyncEventStream",
    "SyncRemoteAgent",
    "connect",
    "connect_sync",
    "news",
]
