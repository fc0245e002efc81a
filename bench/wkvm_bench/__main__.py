"""``python -m wkvm_bench NAME [--smoke]``."""

import sys

from wkvm_bench.command import main

sys.exit(main(sys.argv[1:]))
