"""Files by reference (``docs/extensions/file-transfer.md``).

This only declares the extension: ``server.http.files`` takes files in and hands them out.
"""

from __future__ import annotations

from typing import Any

from parley.model.extensions import Extension

FILE_TRANSFER = "urn:parley:file-transfer:v1"


class FileTransfer(Extension):
    """Files are uploaded to and downloaded from the server of the agent.

    ``upload_url`` is where uploads begin, ``max_bytes`` the size of the largest file, and
    ``inline_bytes`` the size up to which a file should be sent in a message.
    """

    uri = FILE_TRANSFER
    description = (
        "Files that are too large for a message are uploaded to the server, and downloaded from it."
    )

    def __init__(self, *, upload_url: str = "", max_bytes: int, inline_bytes: int) -> None:
        params: dict[str, Any] = {"maxBytes": max_bytes, "inlineBytes": inline_bytes}
        if upload_url:
            params = {"uploadUrl": upload_url, **params}
        super().__init__(params=params)
