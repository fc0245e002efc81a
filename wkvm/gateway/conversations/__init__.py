"""OpenAI's Conversations API: items that stay, and responses that go on with them."""
