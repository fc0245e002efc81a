"""Choices on their way to a client: ids as text, piece by piece, as events."""
