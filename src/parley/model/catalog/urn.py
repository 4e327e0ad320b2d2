"""``AirUrn``: the identifier of a catalog entry, ``urn:air:<publisher>:<namespace>:<name>``."""

from __future__ import annotations

import re

import msgspec

MAX_URN = 512

_DOMAIN = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_NOT_A_SEGMENT = re.compile(r"[^a-z0-9._-]+")


class InvalidUrn(ValueError):
    """A text is no identifier of a catalog entry. The message says why."""


class AirUrn(msgspec.Struct, frozen=True):
    """An identifier in its parts (ARD §4.2.1). ``publisher`` is a domain in lower case.

    Two identifiers are the same when their texts are: ``str`` writes the publisher in lower case,
    and the other segments as they were.
    """

    publisher: str
    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> AirUrn:
        """Read an identifier. Raises ``InvalidUrn``."""
        if len(text) > MAX_URN:
            raise InvalidUrn(f"an identifier has at most {MAX_URN} characters")
        parts = text.split(":")
        if len(parts) < 4 or [part.lower() for part in parts[:2]] != ["urn", "air"]:
            raise InvalidUrn(
                f"{text[:80]!r} is not of the form urn:air:<publisher>:<namespace>:<name>"
            )
        publisher = domain(parts[2])
        for part in parts[3:]:
            if not _SEGMENT.fullmatch(part):
                raise InvalidUrn(
                    f"{part[:40]!r} in {text[:80]!r}: a segment has letters, digits, '.', '_', '-'"
                )
        return cls(publisher, tuple(parts[3:-1]), parts[-1])

    def __str__(self) -> str:
        return ":".join(("urn:air", self.publisher, *self.namespace, self.name))


def domain(text: str) -> str:
    """Return a publisher's domain in lower case. Raises ``InvalidUrn`` for anything else.

    A domain has two labels at least: ``localhost`` is none, ``agent.localhost`` is for tests.
    """
    name = text.rstrip(".").lower()
    if not _DOMAIN.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
        raise InvalidUrn(
            f"{text[:80]!r} is not a domain name such as example.com; a publisher is a domain that "
            "it controls (agent.localhost on one machine)"
        )
    return name


def segment(text: str) -> str:
    """Return a text as a segment of an identifier: ``Trip planner`` becomes ``trip-planner``."""
    return _NOT_A_SEGMENT.sub("-", text.lower()).strip("-.") or "agent"


def is_within(host: str, publisher: str) -> bool:
    """Return whether a host belongs to a publisher: it is its domain, or below it."""
    name = host.rstrip(".").lower()
    return name == publisher or name.endswith(f".{publisher}")
