"""WebSockets, listening: handshakes, frames, limits."""
