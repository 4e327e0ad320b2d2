"""An extension to begin from: messages carry a priority (v1.md).

Rename the package, the class and the entry point, and give the extension a URI of your own that
leads to its page.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from parley import CallContext
from parley.extensions import Extension
from parley.model.operations import SendMessageRequest

__all__ = ["Priority", "Template"]


class Priority(Struct, frozen=True):
    """What the metadata has under the URI."""

    level: Literal["low", "normal", "high"] = "normal"


class Template(Extension):
    """Messages carry a priority; one without gets that of the agent."""

    uri = "https://github.com/parley-agents/parley/blob/main/extensions/template/v1.md"
    description = "Messages carry a priority."
    data = Priority

    def __init__(self, default: Priority | None = None, *, required: bool = False) -> None:
        self.default = default or Priority()
        super().__init__(required=required, params={"default": self.default.level})

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Give what a client sends its priority."""
        if self.of(request.message) is not None:
            return request
        return replace(request, message=self.put(request.message, self.default))

    def receive(self, request: SendMessageRequest, context: CallContext) -> SendMessageRequest:
        """Refuse what is no priority, and give a message without one the agent's."""
        if self.of(request.message) is not None:
            return request
        return replace(request, message=self.put(request.message, self.default))
