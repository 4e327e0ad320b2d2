"""Agents whose skills a language model answers, with functions, MCP servers and agents as tools.

    from parley.llm import llm_agent

    agent = llm_agent("Helper", model="qwen3:8b", tools=[a_function, "https://other-agent"])

``docs/guides/llm-agents.md`` is the guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

if TYPE_CHECKING:
    from parley.agent.tools.tool import Tool, ToolResult, ToolSource
    from parley.llm.function_tools import FunctionTool, ToolFailed
    from parley.llm.model import (
        Model,
        ModelChunk,
        ModelFailed,
        ModelRequest,
        ModelToolCall,
        ModelUsage,
        Script,
        ScriptedModel,
        ScriptedReply,
    )
    from parley.llm.model_loop import ModelLoop, answered, llm_agent
    from parley.llm.openai_model import OpenAIModel
    from parley.llm.remote_skills import RemoteQuestion, RemoteSkill
    from parley.llm.run_output import RunOutput
    from parley.llm.token_budget import BudgetExceeded, ModelRefused, Price, RunStopped, TokenBudget
    from parley.llm.tool_calls import AgentSkills

_HOMES = {
    "parley.agent.tools.tool": "Tool ToolResult ToolSource",
    "parley.llm.function_tools": "FunctionTool ToolFailed",
    "parley.llm.model": (
        "Model ModelChunk ModelFailed ModelRequest ModelToolCall ModelUsage Script "
        "ScriptedModel ScriptedReply"
    ),
    "parley.llm.model_loop": "ModelLoop answered llm_agent",
    "parley.llm.openai_model": "OpenAIModel",
    "parley.llm.remote_skills": "RemoteQuestion RemoteSkill",
    "parley.llm.run_output": "RunOutput",
    "parley.llm.token_budget": "BudgetExceeded ModelRefused Price RunStopped TokenBudget",
    "parley.llm.tool_calls": "AgentSkills",
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

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
