"""The version of the official SDK that is installed."""

from __future__ import annotations

from functools import cache

from parley.integrations.a2a_sdk.official_sdk import OfficialSdk
from parley.integrations.serving import missing


@cache
def installed() -> OfficialSdk:
    """Return the installed version.

    Raises ``ImportError`` that says how to install one.
    """
    try:
        import a2a.server.agent_execution  # noqa: F401, what a2a-sdk without its server lacks
        import a2a.types as types
    except ImportError as error:
        raise missing("a2a-sdk", error) from error
    if hasattr(types, "MessageSendParams"):
        from parley.integrations.a2a_sdk.sdk_0_3 import Sdk03

        return Sdk03()
    from parley.integrations.a2a_sdk.sdk_1 import Sdk1

    return Sdk1()
