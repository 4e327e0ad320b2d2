"""Federation: the other registries that a registry searches, and checks of their results."""
