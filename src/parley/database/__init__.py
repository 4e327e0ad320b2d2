"""The base of SQL applications: connections, readers, group commit, migrations.

It knows no tables but the versions of the schema. An application brings its SQL files
(``SqlFiles``), its schema (``SqliteSchema``, ``PostgresSchema``) and its jobs.
"""
