"""The turns of one task: claiming, running, writing to the log, finishing or releasing."""
