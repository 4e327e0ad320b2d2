"""Inboxes: which notifications were received, shared by the replicas of a receiver."""
