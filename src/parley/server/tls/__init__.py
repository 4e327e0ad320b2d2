"""TLS of the server: certificate files that are reloaded, and what they offer to callers."""
