"""The storage of a registry: entries, sources, health, proved domains, and the audit log."""
