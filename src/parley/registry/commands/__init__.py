"""The commands about agents, catalogs and the registry."""
