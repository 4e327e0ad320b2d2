"""Conversations that an agent hands to another: the value, what is declared, what is recorded."""
