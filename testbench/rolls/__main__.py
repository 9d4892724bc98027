"""Rolls between releases on real processes: python -m testbench.rolls [--rounds N] [--seed S] [--rate R]

Three brokers of release 0.1 on ZooKeeper, replication factor 3, min.insync.replicas 2. Each round goes through Kafka's
five steps of an upgrade and back, in a random order of brokers, which are stopped or killed; others are killed in
between. At the end every acknowledged record must be there once, transactions whole, committed offsets never gone back.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
from pathlib import Path

from testbench.apache_kafka.packages import BenchError
from testbench.process import NodeError
from testbench.releases import ReleaseError
from testbench.rolls.run import NEW_VERSION, OLD_VERSION, VERSION_KEY, RollError, rolling
from testbench.zookeeper import ZooKeeper


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.rolls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="ways there and back (default 3)")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--rate", type=float, default=100, help="records a second of each producer (default 100)")
    parser.add_argument("--copiers", default="ottla,librdkafka", help="libraries of copiers (default ottla,librdkafka)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run, print the verdict. The directory with logs and data stays after a failure."""
    options = parse(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    rng = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="ottla-roll-"))
    print(f"seed {seed}, {OLD_VERSION} to {NEW_VERSION} ({VERSION_KEY}), directory {directory}", flush=True)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        copiers = options.copiers.split(",")
        with (
            ZooKeeper(directory / "zookeeper") as zookeeper,
            rolling(directory, zookeeper.chroot("/ottla"), rate=options.rate, copiers=copiers, say=say) as roll,
        ):
            for _ in range(options.rounds):
                roll.five_steps(rng)
            print(roll.finish())
    except (BenchError, ReleaseError) as error:
        print(f"rolls: {error}", file=sys.stderr)
        return 2
    except (AssertionError, NodeError, RollError) as error:
        print(f"rolls: seed {seed}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
