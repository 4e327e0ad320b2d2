"""Reads and writes catalogs and their entries.

Others' catalogs have ``mediaType`` (AI Catalog) or ``type`` (ARD), and members that we do not know.
An entry that cannot be read is left out with the reason; the rest of its catalog stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.catalog.entries import AICatalog, CatalogEntry, CatalogHost, CatalogStruct
from parley.model.errors import an

MAX_TEXT = 4_096
"""The length limit of a text of an entry; longer ones are cut."""

MAX_LIST = 64
"""How many tags, capabilities and queries of an entry are read."""

_OWN = ("data", "trust_document", "more")
_NAMES = {
    field.encode_name for field in msgspec.structs.fields(CatalogEntry) if field.name not in _OWN
} | {"data", "mediaType"}


class InvalidCatalog(ValueError):
    """A document is no catalog. The message says what is wrong."""


class InvalidEntry(ValueError):
    """An entry cannot be read. The message says what is wrong."""


class RejectedEntry(CatalogStruct, frozen=True, kw_only=True):
    """An entry that was left out. ``identifier`` is its own, if it has one."""

    identifier: str
    reason: str


class ReadCatalog(CatalogStruct, frozen=True, kw_only=True):
    """A catalog as it was read, without the entries that are wrong."""

    catalog: AICatalog
    rejected: tuple[RejectedEntry, ...] = ()


def read_catalog(body: bytes | Mapping[str, Any], *, max_entries: int = 10_000) -> ReadCatalog:
    """Read a catalog from JSON. Raises ``InvalidCatalog``.

    Entries beyond ``max_entries`` are rejected as one.
    """
    document = _object(body, "a catalog")
    version = document.get("specVersion", "1.0")
    if not isinstance(version, str) or version.split(".")[0] != "1":
        raise InvalidCatalog(f"specVersion {version!r} is not supported; 1.x is")
    listed = document.get("entries")
    if not isinstance(listed, list):
        raise InvalidCatalog("a catalog has a list of entries")
    entries: list[CatalogEntry] = []
    rejected: list[RejectedEntry] = []
    for each in listed[:max_entries]:
        try:
            entries.append(read_entry(each))
        except InvalidEntry as error:
            named = each.get("identifier") if isinstance(each, Mapping) else ""
            named = named[:MAX_TEXT] if isinstance(named, str) else ""
            rejected.append(RejectedEntry(identifier=named, reason=str(error)))
    if len(listed) > max_entries:
        more = f"{len(listed) - max_entries} entries beyond the first {max_entries} are not read"
        rejected.append(RejectedEntry(identifier="", reason=more))
    host = document.get("host")
    try:
        read_host = None if host is None else msgspec.convert(host, CatalogHost)
    except msgspec.ValidationError:
        read_host = None  # it is for people: entries count without it
    catalog = AICatalog(spec_version=version, host=read_host, entries=tuple(entries))
    return ReadCatalog(catalog=catalog, rejected=tuple(rejected))


def read_entry(given: Any) -> CatalogEntry:
    """Read an entry from JSON values. Raises ``InvalidEntry``."""
    if not isinstance(given, Mapping):
        raise InvalidEntry("an entry is a JSON object")
    fields: dict[str, Any] = {name: given[name] for name in _NAMES - {"mediaType"} if name in given}
    fields.setdefault("type", given.get("mediaType", ""))
    for name in ("identifier", "displayName", "type"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise InvalidEntry(f"an entry has {an(name)}, a text")
        if len(fields[name]) > MAX_TEXT:
            raise InvalidEntry(f"the {name} of an entry is at most {MAX_TEXT} characters long")
    has_data = fields.get("data") is not None
    if has_data == bool(fields.get("url")):
        raise InvalidEntry("an entry has either a url or data")
    for name in ("tags", "capabilities", "representativeQueries"):
        if isinstance(fields.get(name), list):
            fields[name] = [
                each[:MAX_TEXT] if isinstance(each, str) else each for each in fields[name]
            ][:MAX_LIST]
    if isinstance(fields.get("description"), str):
        fields["description"] = fields["description"][:MAX_TEXT]
    trust = fields.get("trustManifest")
    try:
        entry = msgspec.convert(fields, CatalogEntry)
    except msgspec.ValidationError as error:
        raise InvalidEntry(f"an entry cannot be read: {error}") from None
    more = {name: given[name] for name in given if name not in _NAMES}
    is_same = msgspec.to_builtins(entry.trust_manifest) == trust
    document = trust if isinstance(trust, Mapping) and not is_same else {}
    return msgspec.structs.replace(entry, more=more, trust_document=document)


def write_entry(entry: CatalogEntry) -> dict[str, Any]:
    """Return an entry as JSON values, with the members that were read and are not known."""
    written: dict[str, Any] = msgspec.to_builtins(entry)
    for name in ("more", "trustDocument"):
        written.pop(name, None)
    if entry.trust_document:
        written["trustManifest"] = dict(entry.trust_document)
    return {**entry.more, **written}


def write_catalog(catalog: AICatalog) -> bytes:
    """Return a catalog as JSON."""
    document: dict[str, Any] = {"specVersion": catalog.spec_version}
    if catalog.host is not None:
        document["host"] = msgspec.to_builtins(catalog.host)
    document["entries"] = [write_entry(entry) for entry in catalog.entries]
    return msgspec.json.encode(document)


def _object(body: bytes | Mapping[str, Any], what: str) -> Mapping[str, Any]:
    document = body
    if isinstance(body, bytes):
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise InvalidCatalog(f"{what} is a JSON object; this is no JSON") from None
    if not isinstance(document, Mapping):
        raise InvalidCatalog(f"{what} is a JSON object")
    return document
