"""Messages to agents whose owners asked for them: to no others, and only where they are at home."""

from __future__ import annotations

from urllib.parse import urlsplit

from parley.client.card.interface import Candidate
from parley.model.catalog.urn import is_within
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState
from parley.registry.ingest.authority import domain_of, speaks_for
from parley.registry.publishing.pushing import MAX_PROBE_TEXT, PROBE
from parley.registry.records import Authority, IndexedEntry

_BAD = frozenset({TaskState.FAILED, TaskState.REJECTED})


def probe_text(entry: IndexedEntry, candidate: Candidate) -> str:
    """Return the text of the message that an owner asked for; empty for none.

    The metadata of an entry is its publisher's word if the entry is of its domain, or of who proved
    that; an operator vouches for what others wrote. It counts for agents on the publisher's own
    hosts alone: nobody has messages sent to the agents of others.
    """
    if entry.authority not in (Authority.PROVED, Authority.DOMAIN):
        return ""
    metadata = entry.entry.get("metadata")
    text = metadata.get(PROBE) if isinstance(metadata, dict) else None
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_PROBE_TEXT:
        return ""
    return text if _is_at_home(entry.publisher, candidate.interface.url) else ""


def _is_at_home(publisher: str, url: str) -> bool:
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    domain = domain_of(f"https://[{host}]/" if ":" in host else f"https://{host}/")
    return is_within(host, publisher) or (domain == "localhost" and speaks_for(domain, publisher))


def failure_of(answer: Task | Message) -> str:
    """Return what is wrong with the answer to a message; empty for nothing."""
    if isinstance(answer, Task) and answer.state in _BAD:
        return f"its task for the message of its owner is {answer.state.name.lower()}"
    return ""
