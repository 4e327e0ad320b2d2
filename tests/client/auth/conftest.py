"""Tests use a login folder of their own, never the logins of the user who runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.client.auth.storage import FOLDER, PASSPHRASE, STORAGE, LoginStorage


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of stored logins."""
    monkeypatch.setenv(STORAGE, "file")
    monkeypatch.setenv(FOLDER, str(tmp_path / "logins"))
    monkeypatch.delenv(PASSPHRASE, raising=False)
    for name in ("ORIGIN", "TOKEN"):
        monkeypatch.delenv(f"PARLEY_AUTH_{name}", raising=False)
    monkeypatch.setattr(LoginStorage, "_said", False)
    return tmp_path / "logins"
