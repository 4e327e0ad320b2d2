"""Catalogs and the registry's messages as JSON: tolerant of what others write, exact in ours."""
