"""The database engines: all keep the same contract for every application."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.database.making import Notes, PostgresNotes, SqliteNotes


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def notes(request: pytest.FixtureRequest, tmp_path: Path) -> Notes:
    if request.param == "sqlite":
        return SqliteNotes(tmp_path)
    return PostgresNotes(request.getfixturevalue("postgres_url"))


@pytest.fixture
def sqlite_notes(tmp_path: Path) -> SqliteNotes:
    return SqliteNotes(tmp_path)


@pytest.fixture
def postgres_notes(postgres_url: str) -> PostgresNotes:
    return PostgresNotes(postgres_url)
