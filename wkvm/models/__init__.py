"""One module per model family, and the loading of checkpoints."""
