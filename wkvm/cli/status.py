"""Exit statuses, as constants."""

EXIT_FAILURE = 1
"""Something went wrong."""
EXIT_USAGE = 2
"""What was asked for cannot be had here: the command has to be changed."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count it."""
