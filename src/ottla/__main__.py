"""`python -m ottla`: the command line, if its script is not on the path.

Zone: real.
"""

from __future__ import annotations

from ottla.cli.main import main

if __name__ == "__main__":
    main()
