"""The turns of one task: claimed, run, written to the log, finished or released."""
