"""The envelope binding, listening: over WebSocket and HTTP."""
