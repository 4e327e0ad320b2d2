"""The input of a registry: sites, catalogs, cards, signatures; each read within limits."""
