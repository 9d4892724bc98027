"""The pictures of the documentation: one per concept, docs/pictures/*.svg.

python -m tools.drawings            write them
python -m tools.drawings --check    exit code 1 and the names of those that are not current
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tools.source import ROOT
from tools.svg import Canvas

PICTURES: Final = ROOT / "docs" / "pictures"


def draw_log() -> Canvas:
    """A partition as a log of segments."""
    canvas = Canvas(760, 230, "A partition is a log, kept in segments")
    canvas.text(20, 28, "The directory orders-0 holds the log of one partition.")
    looks = ("soft", "soft", "main")
    names = ("…00000.log", "…00005.log", "…00010.log")
    for number, (look, name) in enumerate(zip(looks, names, strict=True)):
        first, x = number * 5, 20 + number * 205
        count = 5 if number < 2 else 4
        canvas.text(x, 60, f"{name}, indexes", look="soft")
        canvas.cells(x, 70, [str(first + each) for each in range(count)], look, 36)
    canvas.arrow((740, 85), (580, 85), "append")
    canvas.text(20, 150, "log start offset 0")
    canvas.arrow((38, 134), (38, 104))
    canvas.text(590, 150, "log end offset 14", "middle")
    canvas.arrow((590, 134), (590, 104))
    canvas.text(20, 190, "Records are appended to the active segment; the next one gets the log end offset.")
    canvas.text(20, 212, "Retention removes whole segments at the start, compaction rewrites old ones.")
    return canvas


def draw_replication() -> Canvas:
    """Replicas and the high watermark."""
    canvas = Canvas(760, 300, "Replicas of a partition, and the high watermark")
    rows = (("broker 1, leader", 8, 30), ("broker 2, in sync", 6, 110), ("broker 3, in sync", 7, 190))
    for name, count, y in rows:
        canvas.text(20, y + 20, name)
        committed = min(count, 6)
        canvas.cells(180, y, [str(each) for each in range(committed)], "main", 40)
        canvas.cells(180 + committed * 40, y, [str(each) for each in range(committed, count)], "warn", 40)
    canvas.arrow((700, 45), (510, 45), "Produce")
    canvas.arrow((540, 125), (540, 62))
    canvas.arrow((560, 205), (560, 62))
    canvas.text(575, 130, "Fetch: followers")
    canvas.text(575, 148, "copy the leader's log")
    canvas.mark(420, 20, 240, "high watermark 6")
    canvas.text(20, 288, "Records below it are on all in-sync replicas: consumers see them, acks=all is answered.")
    return canvas


def draw_group() -> Canvas:
    """Partitions shared by the members of a group."""
    canvas = Canvas(760, 270, "A consumer group shares the partitions of a topic")
    for number in range(4):
        canvas.box(20, 50 + number * 50, 140, 36, f"orders-{number}", "main")
    members = (("consumer A", 75), ("consumer B", 175))
    for name, y in members:
        canvas.box(330, y, 140, 40, name)
    for number in range(4):
        canvas.arrow((160, 68 + number * 50), (330, 95 if number < 2 else 195))
    canvas.text(20, 32, "topic orders, 4 partitions")
    canvas.text(330, 32, "group billing, generation 7")
    canvas.box(580, 120, 160, 60, "coordinator\n__consumer_offsets", "soft")
    canvas.arrow((470, 95), (580, 140), "commit", dashed=True)
    canvas.arrow((470, 195), (580, 165), dashed=True)
    canvas.text(20, 258, "Each partition has one reader in the group. A member that comes or goes starts a rebalance.")
    return canvas


def draw_transaction() -> Canvas:
    """The steps of a transaction."""
    canvas = Canvas(760, 330, "A transaction, from its first record to its markers")
    canvas.box(20, 130, 140, 60, "producer\ntransactional.id")
    canvas.box(300, 20, 190, 60, "coordinator\n__transaction_state", "soft")
    canvas.text(300, 150, "orders-made-0")
    canvas.cells(300, 160, ["a", "b"], "main", 50)
    canvas.cells(400, 160, ["C"], "warn", 50)
    canvas.text(300, 240, "__consumer_offsets-7")
    canvas.cells(300, 250, ["5"], "main", 50)
    canvas.cells(350, 250, ["C"], "warn", 50)
    canvas.arrow((100, 130), (300, 50), "2 EndTxn")
    canvas.arrow((160, 165), (300, 175), "1 records")
    canvas.arrow((120, 190), (300, 265), "1 offsets")
    canvas.arrow((440, 80), (430, 158))
    canvas.text(445, 112, "3 markers")
    canvas.arrow((490, 60), (610, 60))
    canvas.box(610, 35, 130, 50, "4 complete")
    canvas.text(20, 318, "read_committed readers see a, b and offset 5 once the markers C are there: all or none.")
    return canvas


def draw_pipeline() -> Canvas:
    """A pipeline with retries and dead letters."""
    canvas = Canvas(760, 300, "A pipeline: one transaction per task, retries and dead letters")
    canvas.box(20, 90, 110, 50, "orders", "main")
    canvas.box(250, 70, 160, 90, "step on Spark\nyour function,\none task each")
    canvas.box(590, 40, 150, 40, "priced", "main")
    canvas.box(590, 100, 150, 40, "retry-1, retry-2", "warn")
    canvas.box(590, 160, 150, 40, "dead letters", "bad")
    canvas.arrow((130, 115), (250, 115), "read")
    canvas.arrow((410, 95), (590, 60), "result")
    canvas.arrow((410, 115), (590, 120), "failed")
    canvas.arrow((410, 140), (590, 180))
    canvas.text(440, 185, "failed for good")
    canvas.arrow((665, 140), (665, 158))
    canvas.box(250, 220, 160, 40, "offsets of the group", "soft")
    canvas.arrow((330, 160), (330, 220))
    canvas.text(345, 195, "position")
    canvas.text(20, 288, "All four are in one transaction: whatever dies, each record shows in the output once.")
    return canvas


def draw_demo() -> Canvas:
    """What `make demo` shows."""
    canvas = Canvas(760, 170, "What make demo does")
    canvas.box(20, 40, 130, 60, "20,000 events")
    canvas.box(240, 40, 120, 60, "file-changes", "main")
    canvas.box(420, 40, 130, 60, "PySpark\nkill -9", "bad")
    canvas.box(620, 40, 120, 60, "…-enriched", "main")
    canvas.arrow((150, 70), (240, 70), "write")
    canvas.arrow((360, 70), (420, 70))
    canvas.arrow((550, 70), (620, 70))
    canvas.text(240, 26, "broker: kill -9", look="bad")
    canvas.text(20, 130, "A Spark worker and the broker are killed on the way, and started again.")
    canvas.text(20, 154, "A plain client then reads the result: every event is there exactly once.")
    return canvas


DRAWINGS: Final[Mapping[str, Callable[[], Canvas]]] = {
    "log.svg": draw_log,
    "replication.svg": draw_replication,
    "group.svg": draw_group,
    "transaction.svg": draw_transaction,
    "pipeline.svg": draw_pipeline,
    "demo.svg": draw_demo,
}


def is_current(path: Path, text: str) -> bool:
    """Whether a file holds this text."""
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(words: list[str]) -> int:
    """Write or check all pictures."""
    options = argparse.ArgumentParser(prog="python -m tools.drawings", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing")
    check = options.parse_args(words).check
    texts = {name: draw().render() for name, draw in DRAWINGS.items()}
    stale = [name for name, text in texts.items() if not is_current(PICTURES / name, text)]
    for name in stale:
        if not check:
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / name).write_text(texts[name], encoding="utf-8")
        print(f"docs/pictures/{name}: {'not current; run `make reference`' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
