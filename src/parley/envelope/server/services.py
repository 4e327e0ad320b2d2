"""What all envelope bindings of a server share."""

from __future__ import annotations

import msgspec

from parley.envelope.server.directory import AgentDirectory
from parley.envelope.server.heartbeats import HeartbeatSettings, ServerLoad
from parley.envelope.server.measured import EnvelopeStatistics
from parley.envelope.server.plugins import EnvelopeHandlers


class EnvelopeServices(msgspec.Struct, kw_only=True):
    """What the envelope bindings of a server share.

    ``handlers`` are those of the operator, with the server's own (``registry.register``).
    Without a ``directory`` messages are for the agent at the address alone.
    """

    handlers: EnvelopeHandlers = msgspec.field(default_factory=EnvelopeHandlers)
    directory: AgentDirectory | None = None
    statistics: EnvelopeStatistics = msgspec.field(default_factory=EnvelopeStatistics)
    heartbeats: HeartbeatSettings = HeartbeatSettings()
    load: ServerLoad = msgspec.field(default_factory=ServerLoad)
