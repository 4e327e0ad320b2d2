"""Folds artifact updates into artifacts, and into the pieces that stores keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from parley.model.encoding import decode, encode
from parley.model.parts import Artifact, Part
from parley.model.struct import A2AStruct, NonEmpty
from parley.model.tasks import TaskArtifactUpdateEvent


class IllegalEvent(ValueError):
    """An event that cannot follow those before it. The message says what would be right."""


class ArtifactPiece(NamedTuple):
    """An addition to the stored form of one artifact.

    ``position`` is the artifact's in its task, from 0. ``head`` is the JSON of the artifact
    without its parts, empty when the piece before has it. ``parts`` are the JSON of further parts,
    separated by commas. ``replaces`` removes the earlier pieces of this artifact.
    """

    position: int
    head: bytes
    parts: bytes
    replaces: bool = False


class _Head(A2AStruct, frozen=True, kw_only=True):
    """An artifact without its parts."""

    artifact_id: NonEmpty
    name: str = ""
    description: str = ""
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()


class ArtifactFold:
    """Builds artifacts from updates, in the order of their first updates.

    A chunk costs the chunk, not the artifact. ``strict`` is for our own agents: it refuses a chunk
    for an artifact that does not exist, and one after an artifact's last chunk. Otherwise the
    first creates the artifact and the second is added (§4.2.2 leaves both open). ``unsaved`` names
    those of ``artifacts`` whose stored form lacks something.
    """

    __slots__ = ("_complete", "_growing", "_strict", "_unsaved")

    def __init__(
        self,
        artifacts: Iterable[Artifact] = (),
        *,
        strict: bool = False,
        unsaved: Iterable[str] = (),
    ) -> None:
        self._strict = strict
        self._complete: set[str] = set()
        self._growing: dict[str, _Growing] = {}
        self._unsaved: dict[str, None] = dict.fromkeys(unsaved)
        for index, artifact in enumerate(artifacts):
            growing = self._growing[artifact.artifact_id] = _Growing(artifact, index)
            if artifact.artifact_id in self._unsaved:
                growing.replaces = True
            else:
                growing.mark_saved()

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts as they stand."""
        return tuple([growing.artifact for growing in self._growing.values()])

    def apply(self, update: TaskArtifactUpdateEvent) -> None:
        """Add an update. Raises ``IllegalEvent`` and changes nothing when it cannot follow."""
        artifact_id = update.artifact.artifact_id
        growing = self._growing.get(artifact_id)
        if update.append:
            if self._strict and growing is None:
                raise IllegalEvent(
                    f"append to artifact {artifact_id}, which does not exist; "
                    "the first update of an artifact has append=false"
                )
            if self._strict and artifact_id in self._complete:
                raise IllegalEvent(
                    f"append to artifact {artifact_id} after its last chunk; "
                    "replace it with append=false, or give the new artifact an id of its own"
                )
        else:
            self._complete.discard(artifact_id)
        if update.append and growing is not None:
            growing.append(update.artifact)
        else:
            index = len(self._growing) if growing is None else growing.index
            fresh = self._growing[artifact_id] = _Growing(update.artifact, index)
            fresh.replaces = growing is not None and growing.is_stored
        self._unsaved[artifact_id] = None
        if update.last_chunk:
            self._complete.add(artifact_id)

    def is_complete(self, artifact_id: str) -> bool:
        """Return whether an artifact has had its last chunk, as far as events say."""
        return artifact_id in self._complete

    def take_unsaved(self) -> list[ArtifactPiece]:
        """Return what the stored form lacks, and mark it as stored."""
        pieces = []
        for artifact_id in self._unsaved:
            growing = self._growing[artifact_id]
            if not growing.is_saved:
                pieces.append(growing.piece())
                growing.mark_saved()
        self._unsaved.clear()
        return pieces


class _Growing:
    """An artifact to which chunks can be added."""

    __slots__ = (
        "_artifact",
        "_first",
        "_has_new_head",
        "_is_kept",
        "_parts",
        "_saved",
        "index",
        "replaces",
    )

    def __init__(self, artifact: Artifact, index: int) -> None:
        self.index = index
        self._first = artifact
        self._artifact: Artifact | None = artifact
        self._parts: list[Part] = list(artifact.parts)
        self._saved = 0
        self._is_kept = False
        self._has_new_head = True
        self.replaces = False

    @property
    def artifact(self) -> Artifact:
        if self._artifact is None:
            self._artifact = replace(self._first, parts=tuple(self._parts))
        return self._artifact

    def append(self, chunk: Artifact) -> None:
        self._parts.extend(chunk.parts)
        self._artifact = None
        first = self._first
        if (
            chunk.metadata
            or chunk.extensions
            or (chunk.name and not first.name)
            or (chunk.description and not first.description)
        ):
            self._has_new_head = True
            self._first = replace(
                first,
                name=first.name or chunk.name,
                description=first.description or chunk.description,
                metadata={**(first.metadata or {}), **(chunk.metadata or {})} or None,
                extensions=tuple(dict.fromkeys(first.extensions + chunk.extensions)),
            )

    @property
    def is_saved(self) -> bool:
        return not (self._has_new_head or self._saved < len(self._parts))

    @property
    def is_stored(self) -> bool:
        """Whether the store has a piece of this artifact, or of the one that it replaces."""
        return self.replaces or self._is_kept

    def piece(self) -> ArtifactPiece:
        new = self._parts[self._saved :] if self._saved else self._parts
        head = _head_of(self._first) if self._has_new_head else b""
        return ArtifactPiece(self.index, head, encode(new)[1:-1], self.replaces)

    def mark_saved(self) -> None:
        self._saved = len(self._parts)
        self._is_kept = True
        self._has_new_head = self.replaces = False


def _head_of(artifact: Artifact) -> bytes:
    return encode(
        _Head(
            artifact_id=artifact.artifact_id,
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )
    )


def pieces_of(artifacts: Iterable[Artifact]) -> list[ArtifactPiece]:
    """Return all pieces of artifacts that the store does not have."""
    artifacts = tuple(artifacts)
    return ArtifactFold(
        artifacts, unsaved=[artifact.artifact_id for artifact in artifacts]
    ).take_unsaved()


class _UnreadArtifact(Artifact, frozen=True, kw_only=True):
    """An artifact whose parts stay the JSON that they are."""

    parts: tuple[msgspec.Raw, ...]  # type: ignore[assignment]


class _UnreadUpdate(TaskArtifactUpdateEvent, frozen=True, kw_only=True):
    """An artifact update whose parts stay the JSON that they are."""

    artifact: _UnreadArtifact


def pieces_after(heads: Iterable[bytes], updates: Iterable[bytes]) -> list[ArtifactPiece]:
    """Return what the JSON of updates adds to stored artifacts, of which the heads are given.

    It is the fold of the updates: it only never looks into parts, which it puts one after another.
    """
    folding = ArtifactFold([decode(b'%s,"parts":[]}' % head[:-1], Artifact) for head in heads])
    for update in updates:
        folding.apply(decode(update, _UnreadUpdate))
    return folding.take_unsaved()


def changed_artifacts(updates: Iterable[bytes]) -> frozenset[str]:
    """Return the ids of the artifacts that the JSON of updates changes."""
    return frozenset([decode(update, _UnreadUpdate).artifact.artifact_id for update in updates])
