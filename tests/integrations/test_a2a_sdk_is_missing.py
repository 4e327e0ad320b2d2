"""Without the official SDK, its integration says which command installs it."""

from __future__ import annotations

import pytest

from parley.integrations import a2a_sdk


def test_the_command_that_installs_the_sdk_is_named() -> None:
    with pytest.raises(ImportError, match=r'pip install "parley-a2a\[a2a-sdk\]"'):
        a2a_sdk.agent(object(), object())
