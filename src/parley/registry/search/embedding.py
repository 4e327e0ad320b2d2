"""Vectors of texts, by the model in the wheel of ``wordllama``: static vectors of word pieces.

The files are read from where the package is installed. The package itself is not imported (it could
download other models, and configures logging), so that nothing here can reach a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.model.distribution import install_command

if TYPE_CHECKING:
    import numpy

MODEL = "l2_supercat_256"
DIMENSIONS = 256
_PACKAGE = "wordllama"
_WEIGHTS = f"wordllama/weights/{MODEL}.safetensors"
_TOKENIZER = "wordllama/tokenizers/l2_supercat_tokenizer_config.json"

MAX_CHARACTERS = 4_000
"""How much of a text counts."""


class WordVectors:
    """Makes a vector of length 1 of each text; one of zeros of a text without words."""

    name = MODEL
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


def normalized(rows: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Return rows with the length 1; those of zeros as they are."""
    import numpy

    lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
    result: numpy.ndarray[Any, Any] = rows / numpy.where(lengths > 0, lengths, 1)
    return result
