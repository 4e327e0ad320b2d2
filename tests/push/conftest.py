"""In-process agents for the tests of webhooks."""

from __future__ import annotations

from tests.engine.in_process import fleet as fleet
from tests.engine.in_process import mortal_fleet as mortal_fleet
from tests.engine.in_process import new_replica as new_replica
from tests.engine.in_process import new_store as new_store
from tests.engine.in_process import talk as talk
