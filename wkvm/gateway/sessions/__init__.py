"""Sessions: conversations that are states, turn by turn."""
