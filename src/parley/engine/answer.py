"""What a question of an agent is answered with."""

from __future__ import annotations

from typing import Any, Self

from parley.model.parts import Message


class Answer(Message, frozen=True, kw_only=True, dict=True):
    """The message that answers a question.

    It is equal to that message, and written as that message is.
    """

    @classmethod
    def of(cls, message: Message, *, replayed: bool) -> Self:
        """Return a message as an answer."""
        answer = cls(**{name: getattr(message, name) for name in message.__struct_fields__})
        answer.__dict__["replayed"] = replayed
        return answer

    @property
    def replayed(self) -> bool:
        """Whether the answer was read from the log, for a run after the one that it began.

        It is false in the one run that begins with this answer. It is true in runs for the answers
        to later questions, and in one that goes on after a crash, a deployment or a take-over. What
        the first run did with the answer may then be done already, in part or as a whole.
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
