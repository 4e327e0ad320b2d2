"""The server's own HTTP/1.1."""
