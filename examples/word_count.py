"""Counts the words of a text, of a line or of gigabytes.

parley serve examples/word_count.py
parley send "Count the words" --file book.txt --save counted
"""

import codecs
import csv
import re
import tempfile
from collections import Counter
from pathlib import Path

from parley import Agent, Turn, TurnFile

agent = Agent(
    name="Word counter",
    description="Counts the words of text files, and returns a table of them",
    version="1.0.0",
)

PAUSE = 100_000_000  # bytes between two words about progress


@agent.skill(tags=["text"], examples=["Count the words"], replies="task")
async def count_words(turn: Turn) -> str:
    """Counts the words of the text files that come with a message, and returns a table."""
    if not turn.files:
        turn.fail("Send a text file, and I count its words.")
    counts: Counter[str] = Counter()
    for file in turn.files:
        await count(turn, file, counts)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "words.csv"
        write_table(table, counts)
        await turn.artifact(table, name="words")
    return f"{counts.total():,} words, {len(counts):,} different ones."


async def count(turn: Turn, file: TurnFile, counts: Counter[str]) -> None:
    """Count the words of one file, which is never in memory as a whole."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    begun, read, told = "", 0, 0
    async with file.open() as stream:
        async for chunk in stream:
            *whole, begun = re.split(r"[^\w']+", begun + decoder.decode(chunk).lower())
            counts.update(filter(None, whole))
            read += len(chunk)
            if read - told >= PAUSE:
                told = read
                await turn.working(f"{read:,} bytes of {file.filename or 'the file'} read")
    counts.update(filter(None, re.split(r"[^\w']+", begun + decoder.decode(b"", final=True))))


def write_table(path: Path, counts: Counter[str]) -> None:
    """Write the words, the most frequent first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["word", "count"])
        table.writerows(counts.most_common())
