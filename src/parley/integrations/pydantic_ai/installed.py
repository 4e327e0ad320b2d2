"""Pydantic AI, or the error that says how to install it."""

from __future__ import annotations

from parley.integrations.serving import missing

try:
    from pydantic_ai import __version__ as VERSION
except ImportError as error:
    raise missing("pydantic-ai", error) from error

__all__ = ["VERSION"]
