"""The settings of the client commands, and the sources of their values."""
