"""Questions of agents as elicitations of MCP, and as text for hosts that have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from mcp import types

from parley.extensions.questions import auth_request, question
from parley.mcp.schemas import WRAPPED_ANSWER, form_schema
from parley.model.tasks import Task, TaskState

ANSWER_TASK = "answer_task"


class Asked(NamedTuple):
    """What a task asks: its text, its form, how the fields are the answer, or an address."""

    key: str
    text: str
    form: dict[str, Any]
    kind: str
    url: str = ""
    is_auth: bool = False

    @property
    def params(self) -> types.ElicitRequestFormParams | types.ElicitRequestURLParams:
        """The question as an elicitation."""
        if self.url:
            return types.ElicitRequestURLParams(
                message=self.text, url=self.url, elicitation_id=self.key
            )
        return types.ElicitRequestFormParams(message=self.text, requested_schema=self.form)

    def content(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of ``RemoteAgent.send`` with the answer in a form."""
        value = given.get(WRAPPED_ANSWER)
        if self.kind == "fields":
            return {"data": dict(given)}
        if self.kind == "value":
            return {"data": value}
        if self.kind == "json":
            try:
                return {"data": msgspec.json.decode(str(value))}
            except msgspec.DecodeError:
                return {"message": str(value)}
        return {"message": str(value)}

    def can_be_asked(self, capabilities: types.ClientCapabilities | None) -> bool:
        """Return whether a host can ask its user: a secret never goes through a form."""
        found = None if capabilities is None else capabilities.elicitation
        if found is None:
            return False
        if self.url:
            return found.url is not None
        return not self.is_auth and (found.form is not None or found.url is None)

    def said(self, handle: str) -> str:
        """Return what is asked and how to answer, for a host without elicitation."""
        if self.is_auth:
            where = f" Open {self.url}." if self.url else ""
            return (
                f"The agent needs an authorization: {self.text}{where}\n"
                f"The task is {handle}; when it is done, follow it with follow_task."
            )
        lines = [f"The agent asks: {self.text}"]
        if self.kind != "text":
            lines.append(f"The answer fits: {msgspec.json.encode(self.form).decode()}")
        lines.append(
            f"Answer with the tool {ANSWER_TASK}: task={handle!r}, answer=... "
            "Ask the user if you do not know the answer."
        )
        return "\n".join(lines)


def asked_by(task: Task) -> Asked:
    """Return what a task asks its caller."""
    message = task.status.message
    key = f"q-{message.message_id if message else task.id}"[-64:]
    text = (message.text if message else "") or "What do you want?"
    if task.state is TaskState.AUTH_REQUIRED:
        needed = auth_request(task)
        url = needed.authorization_url if needed else ""
        return Asked(key, (needed.text if needed else "") or text, {}, "text", url, is_auth=True)
    typed = question(task)
    form, kind = form_schema(None if typed is None else typed.schema)
    if typed is not None:
        problems = "; ".join(f"{each.field}: {each.description}" for each in typed.problems)
        text = f"{typed.text or text}\n{problems}" if problems else typed.text or text
    return Asked(key, text, form, kind)


def given_as(answer: Any, asked: Asked) -> dict[str, Any]:
    """Return the options of ``RemoteAgent.send`` with an answer that a model wrote."""
    if asked.kind == "text":
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        return {"message": text}
    if isinstance(answer, str) and asked.kind == "fields":
        fields = asked.form["properties"]
        try:
            answer = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            if len(fields) != 1:
                return {"message": answer}
            answer = {next(iter(fields)): answer}
    elif isinstance(answer, str) and asked.kind == "json":
        try:
            answer = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return {"message": answer}
    elif isinstance(answer, dict) and asked.kind == "value" and answer.keys() == {WRAPPED_ANSWER}:
        answer = answer[WRAPPED_ANSWER]
    return {"data": answer}
