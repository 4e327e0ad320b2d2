"""The envelope protocol, calling."""
