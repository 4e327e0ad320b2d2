"""Costs grow with what is asked for and with nothing else: counted in queries, rows and bytes.

Each test does the same work beside little and beside much of something, on SQLite and PostgreSQL,
and compares what the store's queries read and what its tables hold.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio
