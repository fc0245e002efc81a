"""The routes of token ids, and the binary protocol over a WebSocket."""
