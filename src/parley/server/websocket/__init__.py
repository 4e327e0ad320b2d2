"""WebSockets of the server: handshakes, frames, limits."""
