"""Receivers of push notifications: verified, once, in order, for Starlette and FastAPI."""
