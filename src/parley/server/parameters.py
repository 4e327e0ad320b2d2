"""Which extensions are in force for a request (specification §3.2.6, §4.6)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from parley.model.cards import AgentCapabilities
from parley.model.errors import ExtensionSupportRequiredError

_NONE: frozenset[str] = frozenset()


class Extensions(msgspec.Struct, frozen=True):
    """The extensions that an agent declares, and those of them that callers must ask for."""

    declared: frozenset[str]
    required: tuple[str, ...]

    @classmethod
    def of(cls, capabilities: AgentCapabilities) -> Extensions:
        """Return the extensions of a card."""
        return cls(
            frozenset(extension.uri for extension in capabilities.extensions),
            tuple(extension.uri for extension in capabilities.extensions if extension.required),
        )

    def negotiate(self, asked: Sequence[str]) -> frozenset[str]:
        """Return the extensions in force: those asked for that the agent has (§4.6.3).

        Raises ``ExtensionSupportRequiredError`` when one that the agent requires is not asked for.
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
        return self.declared.intersection(asked)
