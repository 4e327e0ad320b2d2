"""Writes a report and streams it while it is written.

    parley serve examples/streaming_report.py --missing-version 1.0
    parley send --stream "Write a report about tides"

Without more it speaks from a script. To let a language model write, name any endpoint that speaks
the OpenAI chat completions API before you serve it:

    OPENAI_BASE_URL=https://api.openai.com/v1 OPENAI_API_KEY=... OPENAI_MODEL=gpt-5-mini
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator

import aiohttp

from parley import Agent, Turn

agent = Agent(
    name="Report agent",
    description="Writes short reports and streams them as they are written",
    version="1.0.0",
)

SECTIONS = {
    "Summary": "Everybody has heard of {topic}; few have looked closely. This report looks for "
    "as long as it takes to stream it.",
    "What is known": "People have described, measured and argued about {topic}, and agree on "
    "little but the name.",
    "What to do next": "Ask somebody who knows. Or give this agent a model, by naming one in "
    "OPENAI_BASE_URL, and ask it again.",
}
PAUSE = 0.03  # seconds between the words of the script


@agent.skill(tags=["writing"], examples=["Write a report about tides"])
async def report(turn: Turn) -> AsyncIterator[str]:
    """Writes a report of three sections about what it is asked for."""
    topic = turn.text.lower().rpartition(" about ")[2].strip(" .?!") or "nothing"
    yield f"# A report about {topic}\n"
    for number, section in enumerate(SECTIONS, 1):
        await turn.working(f"Writing section {number} of {len(SECTIONS)}: {section}")
        yield f"\n## {section}\n\n"
        async for words in write(section, topic):
            yield words
        yield "\n"


def write(section: str, topic: str) -> AsyncIterator[str]:
    """Return a section, piece by piece: a model's, or the script's."""
    if base_url := os.environ.get("OPENAI_BASE_URL"):
        prompt = f"Write the section '{section}' of a short report on {topic}."
        return ask_model(base_url, prompt)
    return recite(SECTIONS[section].format(topic=topic))


async def recite(text: str) -> AsyncIterator[str]:
    """Say a text word by word."""
    for word in text.split():
        await asyncio.sleep(PAUSE)
        yield f"{word} "


async def ask_model(base_url: str, prompt: str) -> AsyncIterator[str]:
    """Stream the answer of a model behind the OpenAI chat completions API."""
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    question = {
        "model": os.environ.get("OPENAI_MODEL", "gpt-5-mini"),
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
    }
    url = f"{base_url.rstrip('/')}/chat/completions"
    async with (
        aiohttp.ClientSession(headers=headers, raise_for_status=True) as session,
        session.post(url, json=question) as response,
    ):
        async for line in response.content:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if words := choice["delta"].get("content"):
                        yield words
