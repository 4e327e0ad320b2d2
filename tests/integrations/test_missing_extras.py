"""A framework that is not installed: the error says how to install it."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("name", ["google_adk", "pydantic_ai"])
def test_a_missing_framework_is_named_with_the_command_that_installs_it(name: str) -> None:
    extra = name.replace("_", "-")
    with pytest.raises(ImportError, match=rf'pip install "parley-a2a\[{extra}\]"'):
        importlib.import_module(f"parley.integrations.{name}")
