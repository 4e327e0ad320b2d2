"""Agents, workflows and engines of LlamaIndex, served as A2A agents; A2A agents as their tools.

from parley.integrations import llama_index

parley.serve(llama_index.agent(assistant))

assistant = FunctionAgent(tools=await llama_index.tools("https://weather.example"), llm=llm)
"""

from parley.integrations.serving import needs

with needs("llama-index"):
    from parley.integrations.llama_index.served import agent, sub_agent, tools

__all__ = ["agent", "sub_agent", "tools"]
