"""Google ADK, or the error that says how to install it."""

from __future__ import annotations

from parley.integrations.serving import missing

try:
    from google.adk.version import __version__ as VERSION
except ImportError as error:
    raise missing("google-adk", error) from error

__all__ = ["VERSION"]
