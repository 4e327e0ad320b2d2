"""Opens the index at a URL. No error message contains a password."""

from __future__ import annotations

from parley.model.distribution import install_command
from parley.registry.index.registry_index import RegistryIndex

FORMS = (
    "sqlite:///path/to/registry.db (four slashes for an absolute path), "
    "postgresql://user@host/database, or memory: for a temporary index"
)


def open_index(url: str, *, migrate: bool = True) -> RegistryIndex:
    """Return the index at a URL; its ``open`` opens it.

    An outdated PostgreSQL schema is updated if ``migrate``, else rejected; a SQLite file is always
    updated. Raises ``ValueError`` for any other URL.
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
    raise ValueError(f"a registry index cannot be of the kind {scheme[:40]!r}; use {FORMS}")
