"""Adapters of agent frameworks: their agents served over A2A, and A2A agents as their tools.

Each framework has its own module, imported only on use: ``parley.integrations.langgraph`` etc.
"""
