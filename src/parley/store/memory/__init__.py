"""A store in memory, for tests and throw-away servers: nothing survives the process."""

from parley.store.memory.logs import MemoryLogs
from parley.store.memory.store import MemoryTaskStore

__all__ = ["MemoryLogs", "MemoryTaskStore"]
