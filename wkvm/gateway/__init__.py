"""HTTP as a client of the binary protocol, and all that is text: tokenizers, chat templates."""
