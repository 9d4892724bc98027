"""`python -m ottla.kafka_tools kafka-topics …`: a tool without its installed script.

Zone: real. Runs `main`.
"""

from __future__ import annotations

import sys

from ottla.kafka_tools.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
