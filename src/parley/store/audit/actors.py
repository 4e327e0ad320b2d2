"""Acts where there is no caller: those of the user of the operating system."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from typing import Any

from parley.store.protocols.audit import AuditEntry


def user_act(
    kind: str,
    *,
    client: str,
    subject: str = "",
    agent: str = "",
    tenant: str = "",
    details: Mapping[str, Any] = {},
) -> AuditEntry:
    """Return an act of the user whom this process belongs to. ``details`` have no secrets."""
    return AuditEntry(
        kind=kind,
        issuer="os",
        actor=f"{_user_name()}@{socket.gethostname()}",
        client=client,
        agent=agent,
        tenant=tenant,
        subject=subject,
        outcome="done",
        details=details,
    )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"
