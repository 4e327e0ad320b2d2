"""What the SQL stores share: jobs, batches, group commit, reader threads."""
