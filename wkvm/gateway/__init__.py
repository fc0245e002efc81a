"""Text: tokenizers, chat templates, and clients of the binary protocol that need them."""
