"""Run AI agents as A2A services, and call them.

    from parley import Agent, Turn

    agent = Agent("Time agent", description="Tells the time")


    @agent.skill
    async def current_time(turn: Turn) -> str:
        "Returns the current time of the server."
        return datetime.now().isoformat()

``parley serve FILE`` serves it; ``parley.connect(url)`` calls it, ``parley.find(need)`` finds it;
``parley.testing`` tests it, ``parley.envelope`` calls it by messages over a WebSocket.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from parley.model.distribution import VERSION

if TYPE_CHECKING:
    from parley.agent.agent import Agent
    from parley.agent.authorization import AuthorizationRefused, TaskCredential
    from parley.agent.blocking_turn import BlockingTurn
    from parley.agent.files import BlockingFile, TurnFile
    from parley.agent.tools.tool import Tool, ToolResult
    from parley.agent.turn import Turn
    from parley.client.answer import Answer
    from parley.client.artifact_versions import ArtifactVersion, ArtifactVersions
    from parley.client.errors import ClientError, RemoteTaskFailed, ResultMismatch, ResultMissing
    from parley.client.files.stream import FileStream
    from parley.client.remote_agent import RemoteAgent
    from parley.engine.agent_options import CardDetails, Execution, Retention, Rights
    from parley.engine.routing import RoutedMessage
    from parley.engine.turn.attempt import NotAuthorized, UserAnswer
    from parley.envelope.declared import DeclaredPerformance, EnvelopeSettings, MaintenanceWindow
    from parley.host.app import asgi, serve
    from parley.host.complete import complete, complete_sync
    from parley.host.connecting import connect, connect_sync
    from parley.mcp.tool_server import McpServer, McpServerUnavailable
    from parley.model.cards import (
        AgentCapabilities,
        AgentCard,
        AgentExtension,
        AgentInterface,
        AgentProvider,
        AgentSkill,
    )
    from parley.model.errors import A2AError
    from parley.model.operations import TaskPushNotificationConfig
    from parley.model.parts import Artifact, Message, Part, Role
    from parley.model.service import A2AService, CallContext, Caller, TraceContext
    from parley.model.tasks import (
        Task,
        TaskArtifactUpdateEvent,
        TaskState,
        TaskStatus,
        TaskStatusUpdateEvent,
    )
    from parley.registry.client.found import FoundAgent
    from parley.registry.client.remote_registry import RemoteRegistry, find, find_sync
    from parley.server.settings import Settings
    from parley.store.protocols.errors import StoreError
    from parley.store.protocols.tables import EventCompleted

__version__ = VERSION

_HOMES = {
    "A2AError": "parley.model.errors",
    "A2AService": "parley.model.service",
    "Agent": "parley.agent.agent",
    "AgentCapabilities": "parley.model.cards",
    "AgentCard": "parley.model.cards",
    "AgentExtension": "parley.model.cards",
    "AgentInterface": "parley.model.cards",
    "AgentProvider": "parley.model.cards",
    "AgentSkill": "parley.model.cards",
    "Answer": "parley.client.answer",
    "Artifact": "parley.model.parts",
    "ArtifactVersion": "parley.client.artifact_versions",
    "ArtifactVersions": "parley.client.artifact_versions",
    "BlockingFile": "parley.agent.files",
    "AuthorizationRefused": "parley.agent.authorization",
    "BlockingTurn": "parley.agent.blocking_turn",
    "TaskCredential": "parley.agent.authorization",
    "CallContext": "parley.model.service",
    "Caller": "parley.model.service",
    "CardDetails": "parley.engine.agent_options",
    "ClientError": "parley.client.errors",
    "DeclaredPerformance": "parley.envelope.declared",
    "EnvelopeSettings": "parley.envelope.declared",
    "EventCompleted": "parley.store.protocols.tables",
    "Execution": "parley.engine.agent_options",
    "FileStream": "parley.client.files.stream",
    "FoundAgent": "parley.registry.client.found",
    "MaintenanceWindow": "parley.envelope.declared",
    "McpServer": "parley.mcp.tool_server",
    "McpServerUnavailable": "parley.mcp.tool_server",
    "Message": "parley.model.parts",
    "NotAuthorized": "parley.engine.turn.attempt",
    "Part": "parley.model.parts",
    "RemoteAgent": "parley.client.remote_agent",
    "RemoteRegistry": "parley.registry.client.remote_registry",
    "RemoteTaskFailed": "parley.client.errors",
    "ResultMismatch": "parley.client.errors",
    "ResultMissing": "parley.client.errors",
    "Retention": "parley.engine.agent_options",
    "Rights": "parley.engine.agent_options",
    "Role": "parley.model.parts",
    "RoutedMessage": "parley.engine.routing",
    "Settings": "parley.server.settings",
    "StoreError": "parley.store.protocols.errors",
    "Task": "parley.model.tasks",
    "TaskArtifactUpdateEvent": "parley.model.tasks",
    "TaskPushNotificationConfig": "parley.model.operations",
    "TaskState": "parley.model.tasks",
    "TaskStatus": "parley.model.tasks",
    "TaskStatusUpdateEvent": "parley.model.tasks",
    "Tool": "parley.agent.tools.tool",
    "ToolResult": "parley.agent.tools.tool",
    "TraceContext": "parley.model.service",
    "Turn": "parley.agent.turn",
    "TurnFile": "parley.agent.files",
    "UserAnswer": "parley.engine.turn.attempt",
    "asgi": "parley.host.app",
    "complete": "parley.host.complete",
    "complete_sync": "parley.host.complete",
    "connect": "parley.host.connecting",
    "connect_sync": "parley.host.connecting",
    "find": "parley.registry.client.remote_registry",
    "find_sync": "parley.registry.client.remote_registry",
    "serve": "parley.host.app",
}

__all__ = [
    "A2AError",
    "A2AService",
    "Agent",
    "AgentCapabilities",
    "AgentCard",
    "AgentExtension",
    "AgentInterface",
    "AgentProvider",
    "AgentSkill",
    "Answer",
    "Artifact",
    "ArtifactVersion",
    "ArtifactVersions",
    "AuthorizationRefused",
    "BlockingFile",
    "BlockingTurn",
    "CallContext",
    "Caller",
    "CardDetails",
    "ClientError",
    "DeclaredPerformance",
    "EnvelopeSettings",
    "EventCompleted",
    "Execution",
    "FileStream",
    "FoundAgent",
    "MaintenanceWindow",
    "McpServer",
    "McpServerUnavailable",
    "Message",
    "NotAuthorized",
    "Part",
    "RemoteAgent",
    "RemoteRegistry",
    "RemoteTaskFailed",
    "ResultMismatch",
    "ResultMissing",
    "Retention",
    "Rights",
    "Role",
    "RoutedMessage",
    "Settings",
    "StoreError",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskCredential",
    "TaskPushNotificationConfig",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "Tool",
    "ToolResult",
    "TraceContext",
    "Turn",
    "TurnFile",
    "UserAnswer",
    "asgi",
    "complete",
    "complete_sync",
    "connect",
    "connect_sync",
    "find",
    "find_sync",
    "serve",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that ``import parley`` costs little."""
    if name in ("compose", "envelope", "push", "testing"):
        return importlib.import_module(f"parley.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'parley' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
