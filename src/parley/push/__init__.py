"""Push notifications: at-least-once delivery of the task log to webhooks, outbox style."""
