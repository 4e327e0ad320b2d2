"""Questions of remote agents that wait for the model of a program without Parley."""

from __future__ import annotations

import socket

import pytest

import parley
from parley import Agent, Turn
from parley.conformance.background_server import BackgroundServer
from parley.integrations.answers import OpenQuestions
from parley.llm.remote_skills import RemoteQuestion, remote_skills

pytestmark = pytest.mark.anyio

asking = Agent("Asks")


@asking.skill(replies="task")
async def ask(turn: Turn) -> str:
    """Asks which city."""
    city = await turn.ask("Which city?")
    return f"sunny in {city.text}"


async def test_a_question_stays_when_its_answer_does_not_reach_the_agent() -> None:
    server = BackgroundServer(parley.asgi(asking, store="memory:", drain=0.0))
    server.start()
    try:
        (skill,) = await remote_skills(server.url)
        questions = OpenQuestions(skill.card.name)
        with pytest.raises(RemoteQuestion) as asked:
            await skill.call({"message": "the weather"})
        questions.ask(skill, asked.value)
        task_id = asked.value.task.id
        agent = skill._agent
        with socket.socket() as closed:  # bound, and nobody listens
            closed.bind(("127.0.0.1", 0))
            skill._agent = f"http://127.0.0.1:{closed.getsockname()[1]}"
            assert (await questions.answer(task_id, "Oslo")).is_error
        skill._agent = agent
        assert (await questions.answer(task_id, "Oslo")).text == "sunny in Oslo"
        assert not questions
        assert (await questions.answer(task_id, "Oslo")).is_error
    finally:
        server.stop()
