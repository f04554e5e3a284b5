"""`python -m esupcon`."""

import sys

from esupcon.cli import main

if __name__ == "__main__":
    sys.exit(main())
