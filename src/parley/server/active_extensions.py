"""Which extensions are in force for a request (specification §3.2.6, §4.6)."""

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
    """The extensions that an agent declares, and those of them that callers must ask for.

    ``methods`` are those that the extensions add, by name.
    """

    declared: tuple[Extension, ...]
    required: tuple[str, ...]
    methods: Mapping[str, ExtensionMethod[Any, Any]]

    @classmethod
    def of(cls, capabilities: AgentCapabilities, own: Iterable[Extension] = ()) -> Extensions:
        """Return the extensions of a card; ``own`` are those that have a part on the server."""
        on_card = capabilities.extensions
        uris = {extension.uri for extension in on_card}
        declared = collect_extensions([*on_card, *(e for e in own if e.uri in uris)])
        required = [extension.uri for extension in on_card if extension.required]
        methods = {m.operation.name: m for extension in declared for m in extension.methods}
        return cls(declared, tuple(with_dependencies(required, declared)), methods)

    def negotiate(self, asked: Sequence[str]) -> frozenset[str]:
        """Return the extensions in force: those asked for that the agent has (§4.6.3).

        One that depends on another is in force only with it. A URI is taken as a whole: no other
        version of an extension takes the place of the one asked for.

        Raises ``ExtensionSupportRequiredError`` when one that the agent requires, or one that such
        a one depends on, is not asked for.
        """
        if not asked and not self.required:
            return _NONE
        missing = [uri for uri in self.required if uri not in asked]
        if missing:
            raise ExtensionSupportRequiredError(
                f"this agent is only spoken to with {', '.join(missing)}; name it in the header "
                "A2A-Extensions",
                metadata={"requiredExtensions": ",".join(missing)},
            )
        return frozenset(active_uris(self.declared, asked))

    def require(self, uri: str, asked: frozenset[str]) -> None:
        """Raise ``ExtensionSupportRequiredError`` unless ``uri`` is in force."""
        if uri in asked:
            return
        needed = with_dependencies([uri], self.declared)
        words = f"this method is part of the extension {uri}; name it in the header A2A-Extensions"
        if len(needed) > 1:
            words += f", with what it depends on: {', '.join(needed[1:])}"
        raise ExtensionSupportRequiredError(
            words, metadata={"requiredExtensions": ",".join(needed)}
        )
