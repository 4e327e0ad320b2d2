"""Federation: whom a registry asks beside its own index, and which of their results count."""
