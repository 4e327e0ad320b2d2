"""Parts of an artifact that grows: text in chunks is one text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from parley.model.parts import Artifact, Part


class JoinedParts:
    """Parts to which those of chunks are added.

    A chunk that begins with text continues the text before it, if both have one media type and
    neither a file name nor metadata: they are one part, so a text that came in a thousand chunks
    is one text. Adding a chunk costs the chunk. Parts of one chunk stay apart.
    """

    __slots__ = ("_further", "_parts")

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._parts = list(parts)
        self._further: list[str] = []

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts as they stand."""
        self._join()
        return tuple(self._parts)

    def add(self, parts: Sequence[Part]) -> None:
        """Add the parts of a chunk."""
        if self._parts and parts and (text := _continued(self._parts[-1], parts[0])) is not None:
            self._further.append(text)
            parts = parts[1:]
        if parts:
            self._join()
            self._parts.extend(parts)

    def _join(self) -> None:
        if self._further:
            last = self._parts[-1]
            self._parts[-1] = replace(last, text="".join([last.text or "", *self._further]))
            self._further.clear()


def joined(artifact: Artifact) -> Artifact:
    """Return an artifact whose parts came one by one: other programs keep each chunk as a part."""
    parts = JoinedParts()
    for part in artifact.parts:
        parts.add((part,))
    return replace(artifact, parts=parts.parts)


def _continued(last: Part, further: Part) -> str | None:
    """Return the text with which a part continues the one before it, ``None`` if it does not."""
    if last.text is None or further.text is None or last.media_type != further.media_type:
        return None
    if last.filename or last.metadata or further.filename or further.metadata:
        return None
    return further.text
