"""Heartbeats over REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.errors import PermissionDeniedError
from parley.registry.app.operations import Needs, Operation, RestAnswer, RestRequest
from parley.registry.health.heartbeats import MAX_AT_ONCE, Heartbeats


class _Beat(msgspec.Struct, forbid_unknown_fields=True):
    identifiers: list[str]
    details: dict[str, str] = {}


class HeartbeatRoutes:
    """The operation that agents say with that they are alive."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._heartbeats = heartbeats

    async def beat(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /heartbeats``."""
        given = request.read(_Beat, "the heartbeat")
        found = await self._heartbeats.beat(request.caller, given.identifiers, given.details)
        if not found.alive:
            names = ", ".join(each[:200] for each in found.unknown[:5])
            raise PermissionDeniedError(f"this caller has published no {names}: publish it first")
        return RestAnswer(body=found)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of the table."""
        return (
            Operation(
                name="sendHeartbeat",
                method="POST",
                path="/heartbeats",
                handler=self.beat,
                needs=Needs.CALLER,
                summary="Say that agents of the caller are alive",
                description="After two missed heartbeats an agent is suspect, after four gone. The "
                "answer says when the next one is wanted.",
                request={"$ref": "#/components/schemas/Heartbeat"},
                response={"$ref": "#/components/schemas/HeartbeatAnswer"},
                responses={403: "The caller has published none of them."},
                schemas=SCHEMAS,
            ),
        )


_NAMES = {"type": "array", "items": {"type": "string", "maxLength": 512}}

SCHEMAS: Mapping[str, Any] = {
    "Heartbeat": {
        "type": "object",
        "required": ["identifiers"],
        "properties": {
            "identifiers": {**_NAMES, "minItems": 1, "maxItems": MAX_AT_ONCE},
            "details": {
                "type": "object",
                "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 500},
            },
        },
        "additionalProperties": False,
    },
    "HeartbeatAnswer": {
        "type": "object",
        "properties": {
            "alive": _NAMES,
            "unknown": _NAMES,
            "interval": {"type": "number", "description": "In seconds."},
            "suspectAfter": {"type": "number"},
            "goneAfter": {"type": "number"},
        },
    },
}
