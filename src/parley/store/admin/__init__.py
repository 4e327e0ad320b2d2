"""Administration of a store: status, migrations, export, import, pruning."""
