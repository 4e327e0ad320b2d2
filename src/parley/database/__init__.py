"""The base of SQL applications: connections, readers, group commit, migrations.

It knows no tables except the versions of the schema. An application provides its SQL files
(``SqlFiles``), its schema (``SqliteSchema``, ``PostgresSchema``) and its jobs.
"""
