"""Conversations with models on tapes: the real client of OpenAI, a recording, a replay."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from parley.testing import NotOnTape, model_cassette
from parley.testing.model_endpoint import ModelEndpoint

KEY = "sk-" + "very-secret-key-of-mine"


def ask(url: str, text: str = "Hello") -> tuple[str, list[str]]:
    """Ask a model twice: for a whole answer and for a stream."""
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        said = [{"role": "user", "content": text}]
        whole = client.chat.completions.create(model="m", messages=said)  # type: ignore[call-overload]
        stream = client.chat.completions.create(model="m", messages=said, stream=True)  # type: ignore[call-overload]
        pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
        return whole.choices[0].message.content, pieces


def test_a_model_is_asked_once_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with ModelEndpoint(lambda request: f"You said: {request.said}") as real:
        with model_cassette(path, endpoint=real.url, api_key=KEY) as model:
            assert not model.is_replaying
            first = ask(model.url)
        assert len(real.requests) == 2
    assert first[0] == "You said: Hello"
    assert "".join(first[1]) == "You said: Hello"
    assert KEY not in path.read_text()
    with model_cassette(path) as model:
        assert model.is_replaying
        assert ask(model.url) == first


def test_a_call_that_is_not_on_the_tape_is_refused_and_raised(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with pytest.raises(ValueError, match="name the model's endpoint"):
        model_cassette(path)
    with (
        ModelEndpoint(lambda request: "Yes") as real,
        model_cassette(path, endpoint=real.url) as model,
    ):
        ask(model.url)
    with (
        pytest.raises(NotOnTape, match=r"'Hello' on the tape, 'Bye' asked"),
        model_cassette(path) as model,
        pytest.raises(openai.BadRequestError, match="is not on the tape"),
    ):
        ask(model.url, "Bye")
