"""The public names of Parley are pinned: a change here is a change for users."""

from __future__ import annotations

import pkgutil
from types import ModuleType

import pytest

import parley
import parley.compose
import parley.llm
import parley.push
import parley.testing

NAMES = """
A2AError A2AService Agent AgentCapabilities AgentCard AgentExtension AgentInterface AgentProvider
AgentSkill Answer Artifact ArtifactVersion ArtifactVersions AuthorizationRefused BlockingFile
BlockingTurn CallContext Caller CardDetails ClientError DeclaredPerformance EnvelopeSettings
EventCompleted Execution FileStream FoundAgent MaintenanceWindow McpServer McpServerUnavailable
Message NotAuthorized Part RemoteAgent RemoteRegistry RemoteTaskFailed ResultMismatch ResultMissing
Retention Rights Role RoutedMessage Settings StoreError Task TaskArtifactUpdateEvent TaskCredential
TaskPushNotificationConfig TaskState TaskStatus TaskStatusUpdateEvent Tool ToolResult TraceContext
Turn TurnFile UserAnswer asgi complete complete_sync connect connect_sync find find_sync serve
"""

PACKAGES = [parley, parley.compose, parley.llm, parley.push, parley.testing]


def test_the_public_names_are_these() -> None:
    assert sorted(parley.__all__) == NAMES.split()


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in NAMES.split():
        assert getattr(parley, name).__doc__, name


def test_dir_shows_the_public_names() -> None:
    assert set(NAMES.split()) <= set(dir(parley))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_something_public_beside_it(package: ModuleType) -> None:
    # An imported module would replace the public object of the same name in its package.
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules & set(package.__all__) == set()
