"""The audit of a running server: what it records by itself, and where it forwards the lines."""
