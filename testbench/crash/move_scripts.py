"""Workloads with logs that move between two directories; the language is that of `scripts`.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

MOVES: Final[dict[str, str]] = {
    "a move": "8* append 1 2 700; mark; flush; settle; move; settle; append 1 1 90; flush; settle; wait 50",
    "a move of what is not flushed": "8* append 1 2 700; mark; move; settle; append 1 1 90; settle",
    "a move of a log that is written": (
        "6* append 1 2 700; flush; mark; move; some 12; append 1 1 90; some 9; roll; append 0 2 400; some 9; flush; "
        "append 1 1 90; settle; append 1 1 9; flush; settle"
    ),
    "a move and a cut": (
        "8* append 0 2 600; flush; settle; move; some 30; cut 5; append 0 1 90; settle; append 0 1 90; flush; settle"
    ),
    "a move and a log that begins anew": (
        "6* append 1 2 700; flush; settle; move; some 25; restart 40; append 1 2 90; settle; flush; settle"
    ),
    "a kill during a move": (
        "8* append 1 2 700; flush; settle; mark; move; some 30; kill; append 1 1 90; settle; append 1 1 9; flush; "
        "settle"
    ),
    "a clean stop during a move": (
        "8* append 1 2 700; mark; move; some 30; stop; append 1 1 90; settle; append 1 1 9; stop; append 1 1 9; settle"
    ),
    "a move there and back": (
        "6* append 1 2 700; flush; settle; move; settle; append 1 1 90; move; settle; append 1 1 9; flush; settle; "
        "wait 50; stop; append 1 1 9"
    ),
    "a move that is given up": (
        "8* append 1 2 700; flush; settle; move; some 30; stay; append 1 1 9; settle; wait 50; move; settle"
    ),
    "a move of transactions": (
        "txn 1 1 90; abort 1; roll; txn 2 1 90; txn 1 2 900; commit 1; roll; epochs; mark; flush; settle; move; "
        "some 20; abort 2; mark; roll; txn 3 1 9; settle; txn 3 1 9; commit 3; mark; flush; settle"
    ),
    "a move and a log start": (
        "9* append 0 2 700; mark; flush; settle; move; some 20; start 5; starts; some 9; retain; settle; "
        "append 0 1 90; flush; settle; wait 50"
    ),
    "a partition goes while it moves": (
        "on 1; create; 6* append 1 2 700; flush; settle; points; move; some 25; delete; create; append 1 1 90; "
        "flush; settle; wait 50"
    ),
    "a move of two partitions": (
        "3* append 1 2 700; on 1; create; 4* append 2 2 700; flush; move; on 0; flush; move; some 40; append 1 1 9; "
        "points; marks; settle; append 1 1 9; flush; settle"
    ),
    "a compacted log moves": (
        "compact; 5* keys 1 1 2 3; seal; mark; clean; keys 0 -2; keys 0 1; seal; mark; move; clean; keys 1 4; roll; "
        "mark; wait 3000; clean; keys 1 5; flush; settle; stop; keys 1 6; seal; mark; clean"
    ),
    "a move during compaction": (
        "compact; 5* keys 1 1 2 3; seal; mark; clean 15; move; some 25; keys 1 1; seal; mark; settle; clean; stop; "
        "keys 1 2; settle"
    ),
}
