"""The audit: its chain, its recorder, task facts from the log, and where it is forwarded."""
