"""The book's time agent on Parley: its executor and its card, in one line."""

from time_agent import TimeAgentExecutor, agent_card

from parley.integrations import a2a_sdk

agent = a2a_sdk.agent(TimeAgentExecutor(), agent_card)
