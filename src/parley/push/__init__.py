"""Webhooks: push notifications, delivered from the log."""
