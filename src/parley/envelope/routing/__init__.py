"""Other agents of the envelope protocol: hosted, connected, registered; and registration."""
