"""Opens the index that a URL names. No error shows a password."""

from __future__ import annotations

from parley.model.distribution import install_command
from parley.registry.index.registry_index import RegistryIndex

FORMS = (
    "sqlite:///path/to/registry.db (four slashes for an absolute path), "
    "postgresql://user@host/database, or memory: for one that is gone afterwards"
)


def open_index(url: str, *, migrate: bool = True) -> RegistryIndex:
    """Return the index that a URL names; its ``open`` opens it.

    A schema of PostgreSQL that is not up to date is brought there if ``migrate``, else it is
    refused; a SQLite file always is brought up to date. Raises ``ValueError`` for any other URL.
    """
    scheme = url.partition(":")[0].lower()
    if url in ("memory:", "memory://"):
        from parley.registry.index.sqlite import SqliteRegistryIndex

        return SqliteRegistryIndex()
    if scheme == "sqlite":
        path = url.removeprefix("sqlite:///")
        if not path or path == url:
            raise ValueError(f"{url!r} names no file; use {FORMS}")
        from parley.registry.index.sqlite import SqliteRegistryIndex

        return SqliteRegistryIndex(path)
    if scheme in ("postgresql", "postgres"):
        try:
            from parley.registry.index.postgres import PostgresRegistryIndex
        except ModuleNotFoundError as error:
            raise ValueError(
                f"a registry at {scheme}:// needs {error.name}: {install_command('postgres')}"
            ) from None
        return PostgresRegistryIndex(url, migrates=migrate)
    raise ValueError(f"there is no registry index of the kind {scheme[:40]!r}; use {FORMS}")
