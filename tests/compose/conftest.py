"""Agents that listen on sockets of this process, for the tests of compositions."""

from __future__ import annotations

from tests.agent.remote.conftest import serve as serve
from tests.agent.remote.conftest import talk_to as talk_to
from tests.engine.in_process import fleet as fleet
from tests.engine.in_process import new_replica as new_replica
