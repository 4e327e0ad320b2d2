"""The replies of the adapter suite's model, chosen by the newest message of the user."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from parley.llm.model import ModelRequest, ScriptedReply, text_of
from parley.testing.model_endpoint import held

WEATHER = {"city": "Oslo", "celsius": 21.5}
"""The structured output."""


def said_in(request: ModelRequest) -> str:
    """Return the user's text; CrewAI, BeeAI and swarms wrap it in words of their own."""
    words = r"\s*(?:Context:\s)?(?:Current Task|Your task|Message|User Request): (.*)"
    task = re.match(words, request.said)
    return task[1] if task else request.said


def finished(request: ModelRequest, text: str) -> ScriptedReply | str:
    """Return the last words of a run; BeeAI expects them as a tool call, or as its JSON."""
    if any(tool["function"]["name"] == "final_answer" for tool in request.tools):
        return ScriptedReply(tool_calls=[("final_answer", {"response": text})])
    if "final_answer" in str(request.response_format):
        return json.dumps({"name": "final_answer", "parameters": {"response": text}})
    return text


class Script:
    """The script, and the gates that tests open: ``held`` replies wait for them."""

    def __init__(self) -> None:
        self.broken = 0
        self.close()

    def close(self) -> None:
        """Hold replies from now on, until ``open`` is called."""
        self.wait, self.open = held()

    def __call__(self, request: ModelRequest) -> ScriptedReply | str:
        said, results = said_in(request), [_plain(each) for each in request.tool_results]
        for words, answer in self._rules.items():
            if re.search(words, said, re.IGNORECASE):
                reply = answer(self, request, results)
                return finished(request, reply) if isinstance(reply, str) else reply
        return finished(request, f"You said: {said}")

    def _counts(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(text="one two three four five")

    def _adds(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if results:
            return f"The sum is {results[-1]}."
        return ScriptedReply(text="Let me add.", tool_calls=[("add", {"a": 2, "b": 3})])

    def _adds_in_vain(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if results:
            return "The tool fails."
        return ScriptedReply(tool_calls=[("add", {"a": 2, "b": 404})])

    def _books(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if results:
            return f"Result: {results[-1]}."
        return ScriptedReply(tool_calls=[("book", {"city": "Oslo"})])

    def _remembers(self, request: ModelRequest, results: list[str]) -> str:
        for message in request.messages:
            if message.get("role") == "user" and (
                found := re.search(r"my name is (\w+)", text_of(message))
            ):
                return f"You are {found[1]}."
        return "I do not know you."

    def _recalls(self, request: ModelRequest, results: list[str]) -> str:
        """Return which of the known sentences are in the conversation."""
        known = r"my name is \w+|book a \w+"
        said = " ".join(text_of(message) for message in request.messages)
        return "; ".join(dict.fromkeys(re.findall(known, said))) or "nothing"

    def _reacts(self, request: ModelRequest, results: list[str]) -> str:
        return "Thought: I know it.\nFinal Answer: It is done."

    def _waits(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        return f"Done: {results[-1]}" if results else ScriptedReply(tool_calls=[("wait", {})])

    def _weather(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        names = [tool["function"]["name"] for tool in request.tools]
        if request.response_format is None and names and not results:
            return ScriptedReply(tool_calls=[(names[-1], WEATHER)])
        return json.dumps(WEATHER)

    def _sees(self, request: ModelRequest, results: list[str]) -> str:
        kinds = [
            part.get("type", "?")
            for message in request.messages
            if isinstance(content := message.get("content"), list)
            for part in content
            if part.get("type") != "text"
        ]
        return f"I see {len(kinds)}: {', '.join(kinds)}"

    def _fails(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        """Respond with the status in the message, 400 without one."""
        status = re.search(r"\d{3}", said_in(request))
        return ScriptedReply(error=int(status[0]) if status else 400)

    def _refuses(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(refusal="I do not help with that.")

    def _shortens(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(text="The beginning of", finish_reason="length")

    def _filters(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(finish_reason="content_filter")

    def _breaks(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        """Break the stream off the first time, or each time if the message says always."""
        self.broken += 1
        if self.broken == 1 or "always" in said_in(request):
            return ScriptedReply(text="one two three", is_cut=True)
        return "one two three four."

    def _loops(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(tool_calls=[("add", {"a": len(results), "b": 1})])

    def _thinks(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(thinking="Let me think. Yes.", text="Forty-two.")

    def _crashes(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        """Call ``add``; the reply to its result waits until the test opens the gate."""
        if not results:
            return ScriptedReply(tool_calls=[("add", {"a": 20, "b": 22})])
        return ScriptedReply(text=f"The sum is {results[-1]}.", hold=self.wait)

    def _asks_the_agent(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if results:
            return f"The agent says: {results[-1]}"
        name = next(t["function"]["name"] for t in request.tools)
        return ScriptedReply(tool_calls=[(name, {"message": said_in(request)})])

    def _calls(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        """Call the tool that the message names, with the JSON after the name."""
        if results:
            return f"Result: {results[-1]}"
        _, name, arguments = request.said.split(" ", 2)
        return ScriptedReply(tool_calls=[(name, json.loads(arguments))])

    def _books_twice(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if results:
            return f"Results: {'; '.join(results)}."
        return ScriptedReply(tool_calls=[("book", {"city": "Oslo"}), ("book", {"city": "Bergen"})])

    def _transfers(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        names = [tool["function"]["name"] for tool in request.tools]
        handoffs = [name for name in names if name.startswith("transfer_to_")]
        if not results and handoffs:
            return ScriptedReply(text="One moment.", tool_calls=[(handoffs[0], {})])
        return "The expert speaks."

    def _asks_both(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if results:
            return f"The agents say: {'; '.join(results)}"
        name = next(t["function"]["name"] for t in request.tools)
        return ScriptedReply(tool_calls=[(name, {"message": request.said})] * 2)

    def _asks_and_answers(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        """Reply to a question of the agent with the tool that is offered while the agent waits."""
        names = [tool["function"]["name"] for tool in request.tools]
        if not results:
            return ScriptedReply(tool_calls=[(names[0], {"message": "the weather"})])
        if len(results) == 1 and (task := re.search(r"task (\S+) waits", results[0])):
            answer = next(each for each in names if each.startswith("answer_"))
            return ScriptedReply(tool_calls=[(answer, {"task": task[1], "answer": "Rome"})])
        return f"{results[-1]} ({len(names)} tool)"

    def _holds(self, request: ModelRequest, results: list[str]) -> ScriptedReply:
        return ScriptedReply(text="It was held.", hold=self.wait)

    def _hands_over(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        if "Handoff Message" in request.said:
            return "The expert speaks."
        if results:
            return "I have handed over."
        over = {"agent_name": "back", "message": "go on"}
        return ScriptedReply(tool_calls=[("handoff_to_agent", over)])

    def _teams(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        """Hand over with the tool that LlamaIndex offers to agents with a handoff."""
        names = [tool["function"]["name"] for tool in request.tools]
        if results or "handoff" not in names:
            return "The expert speaks."
        (tool,) = [each for each in request.tools if each["function"]["name"] == "handoff"]
        described = str(tool["function"])
        to_agent = "Remote" if "Remote" in described else "back"
        over = {"to_agent": to_agent, "reason": "it knows"}
        return ScriptedReply(text="One moment.", tool_calls=[("handoff", over)])

    def _reads(self, request: ModelRequest, results: list[str]) -> str:
        return "In spring." if "cold spring" in request.said else "I do not know."

    def _draws(self, request: ModelRequest, results: list[str]) -> ScriptedReply | str:
        return "Here it is." if results else ScriptedReply(tool_calls=[("draw", {})])

    _rules: dict[str, Callable[..., ScriptedReply | str]] = {
        r"^count": _counts,
        r"^add in vain": _adds_in_vain,
        r"^add": _adds,
        r"^book": _books,
        r"^who am i": _remembers,
        r"^recall": _recalls,
        r"^wait": _waits,
        r"^react": _reacts,
        r"^weather": _weather,
        r"^look": _sees,
        r"^fail": _fails,
        r"^refuse": _refuses,
        r"^shorten": _shortens,
        r"^filter": _filters,
        r"^break": _breaks,
        r"^loop": _loops,
        r"^think": _thinks,
        r"^crash": _crashes,
        r"^agent": _asks_the_agent,
        r"^twice book": _books_twice,
        r"^call \w+ \{": _calls,
        r"^transfer": _transfers,
        r"^both agents": _asks_both,
        r"^draw": _draws,
        r"^Original Task: graph book": _books,
        r"^Original Task: hold": _holds,
        r"^hand over|User Request: hand over": _hands_over,
        r"^<current_conversation>": _weather,
        r"^team": _teams,
        r"^Context information is": _reads,
        r"^ask and answer": _asks_and_answers,
    }


def _plain(result: str) -> str:
    """Return the result of a tool without the object that some frameworks put around it."""
    try:
        value = json.loads(result)
    except ValueError:
        return result
    return str(value["result"]) if isinstance(value, dict) and set(value) == {"result"} else result
