"""What a server publishes about its agents: cards, documents, pages."""
