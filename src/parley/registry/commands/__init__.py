"""The commands for agents, catalogs and the registry."""
