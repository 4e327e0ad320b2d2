"""Data of any kind in data parts of version 0.3, which hold only objects.

Other data is wrapped as the ``value`` of an object, and the part's metadata says so, as in the
official SDKs.
"""

from __future__ import annotations

from typing import Any

from parley.model.parts import Part

WRAPPED = "data_part_compat"


def wrap(part: Part) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the data and metadata of a data part, wrapped if the data is no object."""
    data, metadata = part.data, part.metadata
    if isinstance(data, dict) and not _is_wrapped(data, metadata):
        return data, metadata
    return {"value": data}, {**(metadata or {}), WRAPPED: True}


def unwrap(data: dict[str, Any], metadata: dict[str, Any] | None) -> Part:
    """Return the data part that ``wrap`` was given."""
    if not _is_wrapped(data, metadata):
        return Part(data=data, metadata=metadata)
    others = {name: value for name, value in (metadata or {}).items() if name != WRAPPED}
    return Part(data=data["value"], metadata=others or None)


def _is_wrapped(data: dict[str, Any], metadata: dict[str, Any] | None) -> bool:
    return metadata is not None and metadata.get(WRAPPED) is True and data.keys() == {"value"}
