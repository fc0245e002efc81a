"""Run the command line as ``python -m wkvm``."""

from wkvm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
