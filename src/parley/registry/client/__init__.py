"""The client of registries and catalogs: ``parley.find`` and ``RemoteRegistry``."""
