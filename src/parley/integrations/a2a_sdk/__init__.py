"""Agents written for the official SDK (``a2a-sdk``), served by Parley.

    from parley.integrations import a2a_sdk

    agent = a2a_sdk.agent(MyExecutor(), card)

The executor and the card are used unchanged, of version 1.x or 0.3.x, whichever is installed.
"""

from __future__ import annotations

from parley.integrations.a2a_sdk.agent import agent

__all__ = ["agent"]
