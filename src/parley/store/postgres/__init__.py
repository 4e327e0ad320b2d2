"""The store of a fleet: PostgreSQL."""
