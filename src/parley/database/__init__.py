"""What SQL applications share: connections, readers, group commit, migrations.

It knows no tables but that of the schema's versions. An application brings its SQL files
(``SqlFiles``), its schema (``SqliteSchema``, ``PostgresSchema``) and its jobs.
"""
