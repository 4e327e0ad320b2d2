"""Keeps extended cards as they were received: signatures are of the JSON, not of its meaning."""

from __future__ import annotations

from typing import Any

from parley.model.operations import GetExtendedAgentCardRequest, Operation

_MAX_KEPT = 4


class _KeepingCodec:
    """A codec that notes the JSON of extended cards before it reads them."""

    def __init__(self, codec: Any, kept: list[bytes]) -> None:
        self._codec = codec
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def read_result(self, operation: Operation, data: Any) -> Any:
        """Return what the operation answers."""
        if operation.request is GetExtendedAgentCardRequest:
            self._kept[:] = [*self._kept[-_MAX_KEPT:], bytes(data)]
        return self._codec.read_result(operation, data)


def keep_raw_card(binding: Any, kept: list[bytes]) -> None:
    """Have a binding of JSON add the extended cards that it receives to ``kept``.

    gRPC has no JSON: there a card is verified in the form that its members have.
    """
    codec = getattr(binding, "codec", None)
    if codec is not None:
        binding.codec = _KeepingCodec(codec, kept)
