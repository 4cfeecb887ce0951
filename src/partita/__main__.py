"""Run the command line as ``python -m partita``."""

import sys

from partita.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
