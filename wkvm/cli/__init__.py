"""The command line."""


def main() -> int:
    """Run the command line; the value is the exit status."""
    raise NotImplementedError
