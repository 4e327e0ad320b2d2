"""The client: calls any agent over any binding. It does not import ``server`` or ``push``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

if TYPE_CHECKING:
    from parley.client.artifact_versions import ArtifactVersion, ArtifactVersions
    from parley.client.bindings.http import Tls
    from parley.client.calls.stream_reader import EventStream, new_output
    from parley.client.card.trust import CardTrust
    from parley.client.connection import Connection, connect
    from parley.client.errors import CardNotTrusted, ClientError
    from parley.client.message import MessageOptions
    from parley.client.remote_agent import RemoteAgent
    from parley.client.sync import SyncEventStream, SyncRemoteAgent, connect_sync
    from parley.extensions.declared import SkillSchema, schemas_on
    from parley.extensions.questions import AuthRequest, Question, auth_request, question

_HOMES = {
    "parley.client.artifact_versions": "ArtifactVersion ArtifactVersions",
    "parley.client.bindings.http": "Tls",
    "parley.client.calls.stream_reader": "EventStream new_output",
    "parley.client.card.trust": "CardTrust",
    "parley.client.connection": "Connection connect",
    "parley.client.errors": "CardNotTrusted ClientError",
    "parley.client.message": "MessageOptions",
    "parley.client.remote_agent": "RemoteAgent",
    "parley.client.sync": "SyncEventStream SyncRemoteAgent connect_sync",
    "parley.extensions.declared": "SkillSchema schemas_on",
    "parley.extensions.questions": "AuthRequest Question auth_request question",
}

__all__ = [
    "ArtifactVersion",
    "ArtifactVersions",
    "AuthRequest",
    "CardNotTrusted",
    "CardTrust",
    "ClientError",
    "Connection",
    "EventStream",
    "MessageOptions",
    "Question",
    "RemoteAgent",
    "SkillSchema",
    "SyncEventStream",
    "SyncRemoteAgent",
    "Tls",
    "auth_request",
    "connect",
    "connect_sync",
    "new_output",
    "question",
    "schemas_on",
]

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
