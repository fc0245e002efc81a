"""Anthropic's Messages API: a translation to the chat that all interfaces share, and back."""
