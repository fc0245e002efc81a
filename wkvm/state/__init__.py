"""Where states live."""
