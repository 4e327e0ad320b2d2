"""What an author writes, and what runs it."""
