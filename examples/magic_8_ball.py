"""Answers any question, and knows better answers for those who know a code.

    parley serve examples/magic_8_ball.py --missing-version 1.0
    parley send "Will it rain today?"

The codes are an extension of the protocol: the agent declares it on its card, with hints for those
who want to guess. A client that activates it puts a code beside its question; one that does not
know of it asks just the same.

    python examples/magic_8_ball.py "Will I be rich?" motherlode
"""

import asyncio
import sys
import zlib

from msgspec.structs import replace

import parley
from parley import Agent, CallContext, Turn
from parley.extensions import Extension
from parley.model.errors import InvalidParamsError
from parley.model.operations import SendMessageRequest

ANSWERS = (
    "The stars nod.",
    "Yes, and sooner than you think.",
    "Ask again after lunch.",
    "The ball is foggy today.",
    "I would not bet on it.",
    "No. Sorry.",
)
UNLOCKED = {
    "motherlode": ("Money is on its way to you.", "You will find it under the sofa."),
    "moo": ("There is a meadow behind the red door.", "The cows know, and the cows say yes."),
}


class KonamiCode(Extension):
    """A code beside a question unlocks answers of its own."""

    uri = "https://example.com/ext/konami-code/v1"
    description = "Codes that unlock further answers"
    key = f"{uri}/code"

    def __init__(self, code: str = "") -> None:
        super().__init__(params={"hints": ["Simulated people get rich by it.", "Cows say it."]})
        self.code = code

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Put the code beside the question (a client's side)."""
        metadata = {**(request.metadata or {}), self.key: self.code}
        return replace(request, metadata=metadata)

    def receive(self, request: SendMessageRequest, context: CallContext) -> SendMessageRequest:
        """Refuse a code that is none (the agent's side)."""
        code = (request.metadata or {}).get(self.key)
        if code and code not in UNLOCKED:
            raise InvalidParamsError("that code unlocks nothing; the card has hints")
        return request


agent = Agent(
    "Magic 8-ball",
    description="Tells your future, more or less",
    version="1.0.0",
    extensions=[KonamiCode()],
)


@agent.skill(tags=["fortune"], examples=["Will it rain today?"])
async def fortune(turn: Turn) -> str:
    """Answers a question about the future."""
    answers: tuple[str, ...] = ANSWERS
    if KonamiCode.uri in turn.extensions:
        answers = UNLOCKED.get(turn.metadata.get(KonamiCode.key, ""), ANSWERS)
    return answers[zlib.crc32(turn.text.encode()) % len(answers)]


async def main(question: str, code: str, url: str = "http://localhost:9999") -> None:
    """Ask the agent at ``url``, with a code."""
    async with parley.connect(url, extensions=[KonamiCode(code)]) as ball:
        print(await ball.send(question))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(
            'Give a question and a code: magic_8_ball.py "Will I be rich?" motherlode [ADDRESS]'
        )
    try:
        asyncio.run(main(*sys.argv[1:]))
    except (parley.A2AError, parley.ClientError) as error:
        sys.exit(str(error))
