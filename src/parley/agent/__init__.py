"""The API of authors, and how their functions run."""
