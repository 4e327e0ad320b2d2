"""What requests to models used."""

from __future__ import annotations

import msgspec

from parley.extensions.usage import Spent


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, and their price if it is known, in the unit that ``Spent.cost`` has."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    requests: int = 0

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=self.cost + other.cost,
            requests=self.requests + other.requests,
        )

    def __sub__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cost=self.cost - other.cost,
            requests=self.requests - other.requests,
        )

    @property
    def tokens(self) -> int:
        """The tokens of requests and replies."""
        return self.input_tokens + self.output_tokens

    @property
    def spent(self) -> Spent:
        """The same as what an answer says that it has cost."""
        return Spent(tokens=self.tokens, cost=self.cost)
