"""A store in memory, for tests and throw-away servers: nothing survives the process."""

from parley.store.memory.store import MemoryLogs, MemoryTaskStore

__all__ = ["MemoryLogs", "MemoryTaskStore"]
