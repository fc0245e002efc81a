"""Chats of OpenAI's interface, and what the chats of all interfaces are made of."""
