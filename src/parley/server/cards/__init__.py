"""Agent cards, OpenAPI documents and pages that a server publishes about its agents."""
