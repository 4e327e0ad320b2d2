"""Agents that a language model answers, with functions, MCP servers and other agents as tools.

    from parley.llm import llm_agent

    agent = llm_agent("Helper", model="qwen3:8b", tools=[a_function, "https://other-agent"])

``docs/llm-agents.md`` shows all of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.agent.tools.tool import Tool, ToolResult
    from parley.llm.agent_of_model import answered, llm_agent
    from parley.llm.endpoint.openai_model import OpenAIModel
    from parley.llm.function_tools import FunctionTool, ToolFailed
    from parley.llm.model import Model, ModelChunk, ModelFailed, ModelRequest, ModelToolCall
    from parley.llm.model_loop import ModelLoop
    from parley.llm.model_usage import ModelUsage
    from parley.llm.remote_skills import RemoteQuestion, RemoteSkill
    from parley.llm.run_output import RunOutput
    from parley.llm.scripted import Script, ScriptedModel, ScriptedReply
    from parley.llm.token_budget import BudgetExceeded, ModelRefused, Price, RunStopped, TokenBudget
    from parley.llm.tool_sources import AgentSkills, ToolSource

_HOMES = {
    "AgentSkills": "parley.llm.tool_sources",
    "BudgetExceeded": "parley.llm.token_budget",
    "FunctionTool": "parley.llm.function_tools",
    "Model": "parley.llm.model",
    "ModelChunk": "parley.llm.model",
    "ModelFailed": "parley.llm.model",
    "ModelLoop": "parley.llm.model_loop",
    "ModelRefused": "parley.llm.token_budget",
    "ModelRequest": "parley.llm.model",
    "ModelToolCall": "parley.llm.model",
    "ModelUsage": "parley.llm.model_usage",
    "OpenAIModel": "parley.llm.endpoint.openai_model",
    "Price": "parley.llm.token_budget",
    "RemoteQuestion": "parley.llm.remote_skills",
    "RemoteSkill": "parley.llm.remote_skills",
    "RunOutput": "parley.llm.run_output",
    "RunStopped": "parley.llm.token_budget",
    "Script": "parley.llm.scripted",
    "ScriptedModel": "parley.llm.scripted",
    "ScriptedReply": "parley.llm.scripted",
    "TokenBudget": "parley.llm.token_budget",
    "Tool": "parley.agent.tools.tool",
    "ToolFailed": "parley.llm.function_tools",
    "ToolResult": "parley.agent.tools.tool",
    "ToolSource": "parley.llm.tool_sources",
    "answered": "parley.llm.agent_of_model",
    "llm_agent": "parley.llm.agent_of_model",
}

__all__ = [
    "AgentSkills",
    "BudgetExceeded",
    "FunctionTool",
    "Model",
    "ModelChunk",
    "ModelFailed",
    "ModelLoop",
    "ModelRefused",
    "ModelRequest",
    "ModelToolCall",
    "ModelUsage",
    "OpenAIModel",
    "Price",
    "RemoteQuestion",
    "RemoteSkill",
    "RunOutput",
    "RunStopped",
    "Script",
    "ScriptedModel",
    "ScriptedReply",
    "TokenBudget",
    "Tool",
    "ToolFailed",
    "ToolResult",
    "ToolSource",
    "answered",
    "llm_agent",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'parley.llm' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
