"""The binary protocol without I/O."""
