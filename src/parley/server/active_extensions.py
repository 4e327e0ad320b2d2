"""Negotiates the active extensions of a request (specification §3.2.6, §4.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from parley.extensions.profile import active_uris, with_dependencies
from parley.model.cards import AgentCapabilities
from parley.model.errors import ExtensionSupportRequiredError
from parley.model.extensions import Extension, ExtensionMethod, collect_extensions

_NONE: frozenset[str] = frozenset()


class Extensions(msgspec.Struct, frozen=True):
    """The extensions that an agent declares, and those that callers must request.

    ``methods`` are the methods that they add, by name.
    """

    declared: tuple[Extension, ...]
    required: tuple[str, ...]
    methods: Mapping[str, ExtensionMethod[Any, Any]]

    @classmethod
    def of(cls, capabilities: AgentCapabilities, own: Iterable[Extension] = ()) -> Extensions:
        """Return the extensions of a card; ``own`` are those implemented on the server."""
        on_card = capabilities.extensions
        uris = {extension.uri for extension in on_card}
        declared = collect_extensions([*on_card, *(e for e in own if e.uri in uris)])
        required = [extension.uri for extension in on_card if extension.required]
        methods = {m.operation.name: m for extension in declared for m in extension.methods}
        return cls(declared, tuple(with_dependencies(required, declared)), methods)

    def negotiate(self, requested: Sequence[str]) -> frozenset[str]:
        """Return the active extensions: those requested that the agent declares (§4.6.3).

        An extension is active only if its dependencies are requested too. URIs must match exactly:
        no other version of an extension replaces the requested one.

        Raises ``ExtensionSupportRequiredError`` when a required extension, or a dependency of one,
        is not requested.
        """
        if not requested and not self.required:
            return _NONE
        missing = [uri for uri in self.required if uri not in requested]
        if missing:
            raise ExtensionSupportRequiredError(
                f"this agent is only spoken to with {', '.join(missing)}; name it in the header "
                "A2A-Extensions",
                metadata={"requiredExtensions": ",".join(missing)},
            )
        return frozenset(active_uris(self.declared, requested))

    def require(self, uri: str, active: frozenset[str]) -> None:
        """Raise ``ExtensionSupportRequiredError`` unless ``uri`` is active."""
        if uri in active:
            return
        needed = with_dependencies([uri], self.declared)
        message = (
            f"this method is part of the extension {uri}; name it in the header A2A-Extensions"
        )
        if len(needed) > 1:
            message += f", with what it depends on: {', '.join(needed[1:])}"
        raise ExtensionSupportRequiredError(
            message, metadata={"requiredExtensions": ",".join(needed)}
        )
