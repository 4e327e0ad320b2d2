"""The files of one agent, as its server offers them."""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from parley.extensions.declared import FILE_TRANSFER, FileTransfer
from parley.files.file_store import FileStore
from parley.files.layout import FileScope
from parley.model.cards import AgentCard, AgentInterface
from parley.model.service import Caller
from parley.security.owner import PER_CALLER, OwnerPolicy

FILES = "files"
"""The segment of files below an agent's address."""


class FileService(msgspec.Struct, frozen=True):
    """Where the files of an agent are kept. ``inline_bytes`` is a hint to callers: files up to that
    size should come in messages. ``guests`` are agents without an address, whose files are given
    out at this one's too.
    """

    store: FileStore
    agent: str
    inline_bytes: int
    owner: OwnerPolicy = PER_CALLER
    guests: tuple[str, ...] = ()

    def scope(self, tenant: str, caller: Caller) -> FileScope:
        """Return the scope of a caller's files. Raises ``A2AError`` for who may own none."""
        return FileScope(self.agent, tenant, self.owner.key_of(caller))

    def declared(self, card: AgentCard, interfaces: tuple[AgentInterface, ...]) -> AgentCard:
        """Return a card that declares the extension, with the address for uploads."""
        extension = FileTransfer(
            upload_url=_upload_url(interfaces),
            max_bytes=self.store.limits.file_bytes,
            inline_bytes=self.inline_bytes,
        )
        others = (each for each in card.capabilities.extensions if each.uri != FILE_TRANSFER)
        capabilities = replace(card.capabilities, extensions=(*others, extension.declared()))
        return replace(card, capabilities=capabilities)


def _upload_url(interfaces: tuple[AgentInterface, ...]) -> str:
    """Return the address for uploads beside these interfaces, empty where there is none."""
    for interface in interfaces:
        if interface.protocol_binding == "HTTP+JSON":
            segments = (interface.url.rstrip("/"), quote(interface.tenant, safe=""), FILES)
            return "/".join(segment for segment in segments if segment)
    return ""
