"""The client: calls any agent over any binding. It knows nothing of ``server`` or ``push``."""

from parley.client.artifact_versions import ArtifactVersion, ArtifactVersions
from parley.client.bindings.tls import Tls
from parley.client.calls.diff import new_output
from parley.client.calls.event_stream import EventStream
from parley.client.card.trust import CardTrust
from parley.client.connection import Connection, connect
from parley.client.errors import CardNotTrusted, ClientError
from parley.client.remote_agent import RemoteAgent
from parley.client.sync import SyncEventStream, SyncRemoteAgent, connect_sync
from parley.extensions.in_task_authorization import AuthRequest, auth_request
from parley.extensions.skill_schemas import SkillSchema, schemas_on
from parley.extensions.typed_questions import Question, question

__all__ = [
    "ArtifactVersion",
    "ArtifactVersions",
    "AuthRequest",
    "CardNotTrusted",
    "CardTrust",
    "ClientError",
    "Connection",
    "EventStream",
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
