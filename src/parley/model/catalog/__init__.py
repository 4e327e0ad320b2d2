"""The AI Catalog and Agentic Resource Discovery (ARD 0.9): entries, identifiers, searches."""
