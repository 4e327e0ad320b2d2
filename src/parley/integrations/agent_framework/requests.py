"""What an agent of the framework asks its user, asked of the turn's caller."""

from __future__ import annotations

from typing import Any

from agent_framework import Content, Message

from parley.agent.turn import Turn
from parley.integrations.answers import ask_until, said_in
from parley.integrations.approvals import approval, clear_decision_in
from parley.model.parts import Part


async def answers_to(turn: Turn, requests: list[Any], *, first: int) -> Any:
    """Ask the caller what an agent asks, one after the other, and return the message that answers.

    A tool that needs approval is approved or not. The result of a tool that the caller has to run
    is the text or the data of the answer. ``first`` is the number of the first question.
    """
    answers = []
    for number, request in enumerate(requests, first):
        answers.append(await answer_to(turn, request, key=f"request-{number}"))
    return Message("user", answers)


async def answer_to(turn: Turn, request: Any, *, key: str) -> Any:
    """Ask the caller what one request asks, and return the content that answers it."""
    if request.type == "function_approval_request":
        call = request.function_call
        decision = await approval(turn, call.name, call.parse_arguments() or {}, key=key)
        return request.to_function_approval_response(decision.is_approved)
    if request.type == "function_call":
        arguments = request.parse_arguments() or {}
        data = {"kind": "toolCall", "tool": request.name, "arguments": arguments}
        question = f"Please run {request.name} and send what it returns."
        answer = await turn.ask([Part(text=question), Part(data=data)], key=key)
        return Content.from_function_result(request.call_id, result=said_in(answer))
    if request.type == "oauth_consent_request":
        asked = f"Please give your consent at {request.consent_link}, then send a message."
        answer = await turn.require_auth(asked, key=key)
        return Content.from_text(answer.text or "I gave my consent.")
    raise NotImplementedError(
        f"the agent asks for {request.type}, which no message of A2A can answer; "
        "run tools of this kind with a handler of the framework"
    )


async def yes_or_no(turn: Turn, question: str, *, key: str) -> bool:
    """Ask the caller, again until the answer says yes or no."""
    decision = await ask_until(
        turn,
        lambda problem: f"{problem} {question} Answer yes or no.".strip(),
        clear_decision_in,
        key=key,
    )
    return decision.is_approved
