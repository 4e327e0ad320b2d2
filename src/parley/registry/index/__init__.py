"""Where a registry keeps what it knows: entries, sources, health, claims of publishers."""
