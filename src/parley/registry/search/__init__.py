"""Search and ranking in a registry: words, filters, facets, scores, meaning, marks."""
