"""Parts, messages and artifacts (specification §4.1), and references to them (§3.4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta

from parley.model.struct import A2AStruct, InvalidField, NonEmpty, freeze

MAX_READ = 64 * 1024 * 1024
"""The default limit in bytes for files that ``read`` holds in memory."""


class Role(Enum):
    """The sender of a message: the client (user) or the agent (specification §4.1.5)."""

    UNSPECIFIED = "ROLE_UNSPECIFIED"
    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"

    def __str__(self) -> str:
        return self.value


# These checks run for every part and message that is read, so they avoid lookups of names.
_USER, _AGENT = Role.USER, Role.AGENT
_NONE: tuple[str, ...] = ()


class Part(A2AStruct, frozen=True, kw_only=True):
    """A piece of content: ``text``, ``raw``, ``url`` or ``data``, exactly one (§4.1.6).

    The other fields are ``None``. ``data`` may be any JSON value, including null, which is ``None``
    too: ``has_data`` distinguishes it from a part without data. ``raw`` has a file's bytes, ``url``
    a file's address.

    Raises ``ValueError`` when none or several of the four are given, ``TypeError`` when text is not
    a string or bytes are not bytes.
    """

    text: str | None = None
    raw: bytes | None = None
    url: str | None = None
    data: Any = UNSET
    metadata: dict[str, Any] | None = None
    filename: str = ""
    media_type: str = ""
    kept_data: ClassVar[Any]
    """The data in the form of codecs: ``UNSET`` in a part without data."""

    def __post_init__(self) -> None:
        # Nearly every part is text, and this runs for each part that is read.
        if (
            isinstance(self.text, str)
            and self.raw is None
            and self.url is None
            and self.kept_data is UNSET
        ):
            return
        content = {"text": self.text, "raw": self.raw, "url": self.url}
        given = [name for name, value in content.items() if value is not None]
        given += ["data"] * self.has_data
        if len(given) != 1:
            raise ValueError(
                "a part has exactly one of text, raw, url and data; this one has "
                + (" and ".join(given) or "none of them")
            )
        if given != ["data"]:
            wanted = bytes if given == ["raw"] else str
            if not isinstance(content[given[0]], wanted):
                raise TypeError(
                    f"{given[0]} is {wanted.__name__}, not {type(content[given[0]]).__name__}"
                )

    @property
    def has_data(self) -> bool:
        """True if the part has data."""
        return self.kept_data is not UNSET

    @property
    def is_file(self) -> bool:
        """True if the part is a file, as bytes or as an address."""
        return self.raw is not None or self.url is not None


def _data(part: Part) -> Any:
    return None if part.kept_data is UNSET else part.kept_data


# Codecs, copies and comparisons of msgspec read the field itself.
Part.kept_data = vars(Part)["data"]
setattr(Part, "data", property(_data, doc="The data, ``None`` in a part without data."))  # noqa: B010


def text_of(parts: Sequence[Part]) -> str:
    """Return the text of all text parts, joined without a separator."""
    return "".join([part.text for part in parts if part.text is not None])


class Message(A2AStruct, frozen=True, kw_only=True):
    """A message of the user or the agent (specification §4.1.4).

    Raises ``InvalidField`` (a ``ValueError``) without an id, a role or parts.
    """

    kind: ClassVar[Literal["message"]] = "message"

    message_id: NonEmpty
    context_id: str = ""
    task_id: str = ""
    role: Role
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (
            type(self.parts) is not tuple
            or self.extensions is not _NONE
            or self.reference_task_ids is not _NONE
        ):
            freeze(self, "parts", "extensions", "reference_task_ids")
        if self.role is not _USER and self.role is not _AGENT:
            raise InvalidField("role", f"expected ROLE_USER or ROLE_AGENT, got {self.role}")
        if not self.message_id:
            raise InvalidField("message_id", "must not be empty")
        if not self.parts:
            raise InvalidField("parts", "must not be empty")

    @property
    def text(self) -> str:
        """The text of all text parts, joined without a separator."""
        return text_of(self.parts)

    def __str__(self) -> str:
        return self.text


class Artifact(A2AStruct, frozen=True, kw_only=True):
    """A result of a task (specification §4.1.7). Its id is unique within the task.

    Raises ``InvalidField`` (a ``ValueError``) without an id. It may have no parts: a last chunk can
    complete an artifact without adding to it.
    """

    artifact_id: NonEmpty
    name: str = ""
    description: str = ""
    parts: tuple[Part, ...]
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.parts) is not tuple or self.extensions is not _NONE:
            freeze(self, "parts", "extensions")
        if not self.artifact_id:
            raise InvalidField("artifact_id", "must not be empty")

    @property
    def text(self) -> str:
        """The text of all text parts, joined without a separator."""
        return text_of(self.parts)

    def __str__(self) -> str:
        return self.text


TASK_KEY = "taskId"
ARTIFACT_KEY = "artifactId"
"""The members of a part's metadata that refer to an artifact and its task."""


class ArtifactReference(msgspec.Struct, frozen=True):
    """A reference to an artifact. Without ``task_id`` it is in a referenced or the current task."""

    artifact_id: str
    task_id: str = ""


def artifacts_named(message: Message) -> tuple[ArtifactReference, ...]:
    """Return the distinct artifacts that the parts of a message refer to, in order."""
    found = {
        ArtifactReference(artifact, _string(part, TASK_KEY)): None
        for part in message.parts
        if (artifact := _string(part, ARTIFACT_KEY))
    }
    return tuple(found)


def tasks_named(message: Message) -> tuple[str, ...]:
    """Return the distinct ids of the tasks that a message or its parts refer to."""
    ids = [*message.reference_task_ids, *(_string(part, TASK_KEY) for part in message.parts)]
    return tuple(dict.fromkeys(filter(None, ids)))


def _string(part: Part, key: str) -> str:
    value = (part.metadata or {}).get(key)
    return value if isinstance(value, str) else ""
