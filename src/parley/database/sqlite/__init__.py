"""SQLite files: locked, checked, migrated, watched; one connection writes, others read."""
