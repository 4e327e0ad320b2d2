"""The answer to a question that an agent asked (``turn.ask``)."""

from __future__ import annotations

from typing import Any, Self

from parley.model.parts import Message


class Answer(Message, frozen=True, kw_only=True, dict=True):
    """The message that answers a question. It compares and serializes like that message."""

    @classmethod
    def of(cls, message: Message, *, replayed: bool) -> Self:
        """Return an answer made of a message."""
        answer = cls(**{name: getattr(message, name) for name in message.__struct_fields__})
        answer.__dict__["replayed"] = replayed
        return answer

    @property
    def replayed(self) -> bool:
        """True if an earlier attempt had the answer, and may have acted on it already.

        It is false only in the attempt that the answer began. It is true in later turns, and after
        a crash, a deployment or a claim by another replica.
        """
        return bool(self.__dict__.get("replayed", False))

    def _message(self) -> Message:
        return Message(**{name: getattr(self, name) for name in self.__struct_fields__})

    def __eq__(self, other: object) -> bool:
        return self._message() == other

    def __hash__(self) -> int:
        return hash(self._message())

    def __copy__(self) -> Self:
        return self.of(self, replayed=self.replayed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _answer, (self._message(), self.replayed)


def _answer(message: Message, replayed: bool) -> Answer:
    return Answer.of(message, replayed=replayed)
