"""Files that ADK's agents save, as artifacts of the task."""

from __future__ import annotations

from typing import Any

from google.adk.artifacts.base_artifact_service import (
    ArtifactVersion,
    BaseArtifactService,
    ensure_part,
)
from google.genai import types

from parley.agent.turn import Turn
from parley.integrations.google_adk.content import file_of
from parley.model.parts import Artifact, Part

VERSION = "adkVersion"


class TaskArtifacts(BaseArtifactService):
    """Keeps files as artifacts of the turn's task, by their names.

    Saving a file again replaces the artifact: the newest version is kept, with its number. Files
    of earlier tasks of the context can be loaded too.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._saved: dict[str, Artifact] = {}

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Write a file as an artifact, and return its version, from 0."""
        part = file_of(ensure_part(artifact), filename)
        if part is None:
            raise ValueError(f"{filename} has no bytes, no text and no http address to keep")
        found = await self._found(filename)
        version = 0 if found is None else _version(found) + 1
        written = Artifact(
            artifact_id=filename,
            name=filename,
            parts=(part,),
            metadata={**(custom_metadata or {}), VERSION: version},
        )
        await self._turn.artifact(
            list(written.parts), name=filename, artifact_id=filename, metadata=written.metadata
        )
        self._saved[filename] = written
        return version

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a file, ``None`` if there is none of that name and version."""
        found = await self._found(filename)
        if found is None or (version is not None and _version(found) != version):
            return None
        part = found.parts[0]
        if not part.is_file:
            return types.Part(text=part.text or "")
        content = await self._turn.file(part).read()
        media_type = part.media_type or "application/octet-stream"
        return types.Part(inline_data=types.Blob(data=content, mime_type=media_type))

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of the files of the context."""
        return sorted(await self._all())

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Do nothing: what a task has shown stays in it."""

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the number of the version that is kept."""
        found = await self._found(filename)
        return [] if found is None else [_version(found)]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the version that is kept."""
        found = await self._found(filename)
        return [] if found is None else [_described(found)]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return what is known of a version."""
        found = await self._found(filename)
        if found is None or (version is not None and _version(found) != version):
            return None
        return _described(found)

    async def _found(self, filename: str) -> Artifact | None:
        return (await self._all()).get(filename)

    async def _all(self) -> dict[str, Artifact]:
        """Return the files of the context by their names, those of this task first."""
        found: dict[str, Artifact] = {}
        task = self._turn.task
        others = await self._turn.other_tasks()
        for each in (*reversed(others), *(() if task is None else (task,))):
            for artifact in each.artifacts:
                if VERSION in (artifact.metadata or {}) and artifact.parts:
                    found[artifact.name] = artifact
        return {**found, **self._saved}


def _version(artifact: Artifact) -> int:
    return int((artifact.metadata or {}).get(VERSION, 0))


def _described(artifact: Artifact) -> ArtifactVersion:
    part: Part = artifact.parts[0]
    metadata = {key: each for key, each in (artifact.metadata or {}).items() if key != VERSION}
    return ArtifactVersion(
        version=_version(artifact),
        canonical_uri=part.url or f"artifact://{artifact.name}",
        custom_metadata=metadata,
        mime_type=part.media_type or None,
    )
