"""The audit: its chain, its recorder, task facts from the log, and forwarding."""
