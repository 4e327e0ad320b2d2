"""The public surface of Parley, pinned: a change here is a change for users."""

from __future__ import annotations

import parley

NAMES = """
A2AError A2AService Agent AgentCapabilities AgentCard AgentExtension AgentInterface AgentProvider
AgentSkill Answer Artifact ArtifactVersion ArtifactVersions AuthorizationRefused BlockingFile
BlockingTurn CallContext Caller ClientError EventCompleted FileStream Message NotAuthorized Part
RemoteAgent RemoteTaskFailed Role RoutedMessage Settings StoreError Task TaskArtifactUpdateEvent
TaskCredential TaskPushNotificationConfig TaskState TaskStatus TaskStatusUpdateEvent TraceContext
Turn TurnFile asgi complete complete_sync connect connect_sync serve
"""


def test_the_public_names_are_these() -> None:
    assert sorted(parley.__all__) == NAMES.split()


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in NAMES.split():
        assert getattr(parley, name).__doc__, name


def test_dir_shows_the_public_names() -> None:
    assert set(NAMES.split()) <= set(dir(parley))
