"""The catalog of a server's own agents, which every server can publish."""
