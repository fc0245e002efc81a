"""Watches: what connections are told of changes without asking."""

WATCHES_PER_CONNECTION = 8
WATCHES_PER_TENANT = 64
MAX_CHANGED = 4096
"""Handles that a watch remembers to have changed; where there are more, it tells all anew."""
