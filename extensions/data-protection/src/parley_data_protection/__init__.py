"""Purpose, retention and region of data (v1.md).

Agent("Hotel", extensions=[DataProtection(Practice(purposes=["booking"], retention_days=30,
                                                   regions=["EU"]))])
parley.connect(url, extensions=[DataProtection(label=Label(purposes=["booking"], ...))])
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from parley import CallContext
from parley.extensions import Extension
from parley.model.cards import AgentCard
from parley.model.errors import InvalidParamsError
from parley.model.extensions import Carrier
from parley.model.operations import SendMessageRequest

__all__ = ["URI", "DataNotAllowed", "DataProtection", "Label", "Practice"]

URI = "https://github.com/parley-agents/parley/blob/main/extensions/data-protection/v1.md"


class DataNotAllowed(ValueError):
    """Data that the agent must not have, and was not sent. The message says why."""


class Practice(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What an agent does with data: for which purposes, how long it keeps it, and where it is.

    ``retention_days`` 0 keeps nothing after the answer.
    """

    purposes: frozenset[str]
    retention_days: int
    regions: frozenset[str]

    def __post_init__(self) -> None:
        _freeze(self)
        if not self.purposes or not self.regions:
            raise ValueError("a practice has at least one purpose and one region")
        if self.retention_days < 0:
            raise ValueError("retention_days is a number of days, 0 or more")


class Label(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What may be done with data. What is left out is not limited."""

    purposes: frozenset[str] | None = None
    retention_days: int | None = None
    regions: frozenset[str] | None = None

    def __post_init__(self) -> None:
        _freeze(self)

    def problem(self, practice: Practice) -> str:
        """Return what a practice does that the data does not allow, empty if it keeps to it."""
        if self.purposes is not None and (more := practice.purposes - self.purposes):
            return f"it is not for {_listed(more)}, only for {_listed(self.purposes)}"
        if self.retention_days is not None and practice.retention_days > self.retention_days:
            kept = practice.retention_days
            return f"it may be kept {self.retention_days} days, and the agent keeps it {kept}"
        if self.regions is not None and (more := practice.regions - self.regions):
            return f"it must not be in {_listed(more)}, only in {_listed(self.regions)}"
        return ""


class DataProtection(Extension):
    """Data says what may be done with it, and agents what they do.

    An agent has its ``practice`` on its card, and refuses data that does not allow it; with
    ``labelled``, data without a label too. A client puts its ``label`` on what has none, and does
    not send data to an agent that does more than the label allows, or does not say what it does:
    ``DataNotAllowed``.
    """

    uri = URI
    description = "Data says what it may be used for, how long and where."
    data = Label

    def __init__(
        self,
        practice: Practice | None = None,
        *,
        label: Label | None = None,
        labelled: bool = False,
        required: bool = False,
    ) -> None:
        self.practice = practice
        self.label = label
        self.labelled = labelled
        params: dict[str, Any] | None = None
        if practice is not None:
            params = {**_json(practice), "labelled": labelled}
        super().__init__(required=required, params=params)

    @classmethod
    def says(cls, data: Any) -> dict[str, Any]:
        """Return a label as metadata."""
        return {cls.uri: _json(data)}

    def for_agent(self, card: AgentCard) -> Extension:
        """Return the extension for calls of an agent. Raises ``DataNotAllowed``."""
        declared = self.declared_on(card)
        bound = copy.copy(self)
        try:
            bound.practice = msgspec.convert((declared and declared.params) or {}, Practice)
        except (msgspec.ValidationError, ValueError):
            raise DataNotAllowed(
                f"{card.name} does not say on its card what it does with data, so none is sent"
            ) from None
        if self.label is not None and (problem := self.label.problem(bound.practice)):
            raise DataNotAllowed(f"the data is not sent to {card.name}: {problem}")
        return bound

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Label what a client sends. Raises ``DataNotAllowed``."""
        if self.label is not None and self.of(request.message) is None:
            request = replace(request, message=self.put(request.message, self.label))
        for label in self._labels(request):
            if self.practice is not None and (problem := label.problem(self.practice)):
                raise DataNotAllowed(f"the data is not sent: {problem}")
        return request

    def receive(self, request: SendMessageRequest, context: CallContext) -> SendMessageRequest:
        """Refuse data that does not allow what the agent does, before anything is kept."""
        if self.practice is None:
            return request
        labels = list(self._labels(request))
        if self.labelled and self.of(request.message) is None:
            bare = [part for part in request.message.parts if self.of(part) is None]
            if bare:
                raise InvalidParamsError(
                    "this agent takes data only with a label that says what it may be used for: "
                    f"put one into the metadata of the message, under {URI}"
                )
        for label in labels:
            if problem := label.problem(self.practice):
                raise InvalidParamsError(f"the data is refused: {problem}")
        return request

    def _labels(self, request: SendMessageRequest) -> Iterator[Label]:
        """Yield the labels of a message and of its parts; all of them hold."""
        carriers: list[Carrier] = [request.message, *request.message.parts]
        for carrier in carriers:
            if (label := self.of(carrier)) is not None:
                yield label


def _freeze(value: Practice | Label) -> None:
    for name in ("purposes", "regions"):
        given = getattr(value, name)
        if isinstance(given, str):
            raise TypeError(f"{name} is a list of texts, such as [{given!r}]")
        if given is not None:
            msgspec.structs.force_setattr(value, name, frozenset(given))


def _json(value: Practice | Label) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(value, order="sorted")
    return made


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
