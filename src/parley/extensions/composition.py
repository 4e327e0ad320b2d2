"""What an agent is made of, as a picture on its card (``docs/extensions/composition.md``)."""

from __future__ import annotations

from parley.model.extensions import Extension

COMPOSITION = "urn:parley:composition:v1"


class CompositionPicture(Extension):
    """The card has a picture of the agents that this one is made of. Compositions declare it.

    ``svg`` is the same picture for pages.
    """

    uri = COMPOSITION
    description = "A picture of what this agent is made of, in the language of Mermaid."

    def __init__(self, mermaid: str, svg: str) -> None:
        super().__init__(params={"mermaid": mermaid})
        self.mermaid = mermaid
        self.svg = svg
