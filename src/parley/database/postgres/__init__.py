"""PostgreSQL: connections with bounded waits, migrations, readers, and a writer of groups."""
