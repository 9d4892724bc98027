"""Workloads of the storage package, as data.

Zone: pure. Steps are separated by `;` and run without a pause between them, while syncs and checkpoints are under way;
`settle` waits for those. The words of the language, with their numbers:

    append P N S [L]  a batch of producer P (0: of none): N records of S bytes, stamped L ms late
    txn P N S         the same in a transaction; `commit P`, `abort P` write its marker
    follow B N S      B batches as a leader sends them, in one piece
    flush, roll       as the log has them
    mark [B]          the high watermark, B offsets before the end
    start B           the log start, B offsets before the end (DeleteRecords)
    retain [S]        retention: below the log start, and by size
    cut B, restart A  a follower truncates B offsets, or restarts its log A offsets above its end
    epochs [N]        a new leader epoch
    points, starts, marks   the checkpoints of recovery points, log starts, high watermarks
    stop, kill        a clean stop or a killed process, and the next start
    blind             a clean stop, and all indexes vanish before the next start
    create, delete    the partition; `on N`: later steps use partition N
    compact, compact-delete   creates a topic with that policy; later steps use it
    keys P K…         a batch of producer P with a record of each key K; of a negative one a tombstone
    tkeys P K…        the same in a transaction
    seal              a roll, and a record of key 9 after it
    clean [N]         the cleaner looks for work, and does it; N: only N events of that
    move, stay        the log starts to move to the other of two directories; the move is cancelled
    some N            N pending events
    settle, wait MS   until nothing is pending; for a time, with the timers that fire meanwhile
    3* …              the step three times
"""

from __future__ import annotations

from typing import Final

from testbench.crash.compaction_scripts import COMPACTION
from testbench.crash.move_scripts import MOVES

SCRIPTS: Final[dict[str, str]] = {
    "one batch": "append 0 1 100; flush; settle",
    "appends": "12* append 0 3 200; settle; flush; 4* append 0 2 400; settle",
    "large batches": "3* append 0 1 4900; flush; settle; 3* append 0 1 5500; settle",
    "rolls by size": "30* append 0 2 600; settle; flush; settle",
    "rolls by hand": "append 0 2 100; roll; append 0 2 100; roll; append 0 2 100; roll; settle; append 0 1 50",
    "flush after each": (
        "append 0 1 300; flush; append 0 1 300; flush; append 0 1 300; flush; roll; append 0 1 9; flush; settle"
    ),
    "a flush on its way": "6* append 0 2 500; flush; 6* append 0 2 500; roll; 3* append 0 2 500; settle; flush; settle",
    "an idle log rolls": "append 0 1 100; flush; settle; roll; settle; points; settle; append 0 1 100; flush; settle",
    "late stamps": "6* append 0 2 400; 6* append 0 2 400 90000; roll; 4* append 0 2 300 500000; flush; settle",
    "epochs": (
        "append 0 2 100; epochs; append 0 2 100; epochs 3; append 0 2 100; roll; epochs; append 0 2 100; flush; settle"
    ),
    "epochs across segments": "8* append 0 2 700; epochs; 8* append 0 2 700; epochs; 8* append 0 2 700; flush; settle",
    "producers": "append 1 2 100; append 2 1 100; append 1 3 100; flush; append 2 4 300; settle",
    "producer snapshots": (
        "4* append 1 2 900; roll; 4* append 2 2 900; roll; append 1 1 10; flush; settle; append 3 1 10"
    ),
    "many producers": (
        "append 1 1 90; append 2 1 90; append 3 1 90; append 4 1 90; append 5 1 90; roll; append 6 1 90; flush; settle"
    ),
    "a transaction": "txn 1 2 200; txn 1 2 200; commit 1; mark; flush; settle; append 0 1 100",
    "an aborted transaction": "txn 1 2 200; append 0 1 100; abort 1; mark; flush; settle; txn 1 1 50; settle",
    "transactions across segments": (
        "txn 1 3 900; 4* append 0 2 900; roll; txn 2 1 90; abort 1; roll; commit 2; flush; mark; settle"
    ),
    "aborts in every segment": (
        "txn 1 1 90; abort 1; roll; txn 2 1 90; abort 2; roll; txn 3 1 90; abort 3; mark; flush; settle; roll; settle"
    ),
    "open transactions": (
        "txn 1 1 90; txn 2 1 90; roll; append 0 4 900; roll; flush; settle; abort 2; roll; txn 3 1 9; settle"
    ),
    "markers above the mark": (
        "txn 1 1 90; commit 1; mark; marks; settle; txn 1 1 90; abort 1; roll; marks; flush; settle; kill; append 0 1 9"
    ),
    "checkpoints": (
        "6* append 0 2 500; mark; points; marks; starts; settle; flush; settle; points; marks; settle; 3* append 0 2 90"
    ),
    "checkpoints in between": (
        "6* append 0 2 700; flush; points; 6* append 0 2 700; points; flush; marks; settle; points; settle"
    ),
    "a log start": "9* append 0 2 700; mark; start 4; starts; settle; append 0 1 90; flush; settle",
    "a log start at the end": (
        "9* append 0 2 700; mark; start 0; starts; settle; retain; settle; append 0 1 90; flush; settle"
    ),
    "a log start and retention": (
        "12* append 0 2 700; flush; settle; mark; start 5; retain; settle; wait 50; settle; append 0 2 90"
    ),
    "retention": (
        "16* append 0 2 900; flush; settle; retain 9000; settle; wait 50; settle; append 0 2 90; flush; settle"
    ),
    "retention at once": "16* append 0 2 900; retain 6000; retain 3000; settle; wait 50; settle",
    "retention of all": "8* append 1 2 900; flush; settle; retain 0; settle; wait 50; append 1 2 90; flush; settle",
    "retention again and again": (
        "8* append 0 2 900; retain 7000; 8* append 0 2 900; retain 7000; wait 30; 8* append 0 2 900; retain 7000; "
        "wait 30; settle"
    ),
    "retention and a restart": (
        "12* append 1 2 900; mark; retain 5000; kill; 3* append 1 2 90; flush; settle; stop; append 1 1 9"
    ),
    "a cut": "6* append 0 2 300; flush; settle; cut 5; 2* append 0 2 300; flush; settle",
    "a cut that is not flushed": "6* append 0 2 300; flush; settle; points; settle; cut 5; 3* append 0 1 500; settle",
    "a cut across segments": (
        "9* append 0 2 900; flush; settle; points; settle; cut 9; append 0 2 90; settle; flush; settle"
    ),
    "a cut to the beginning": "5* append 1 2 900; flush; settle; points; settle; cut 100; append 1 2 90; flush; settle",
    "a cut of the same size": "6* append 0 1 440; flush; settle; cut 3; 3* append 0 1 440; settle; flush; settle",
    "a cut through a transaction": (
        "txn 1 2 90; append 0 1 90; abort 1; roll; txn 1 1 90; mark; flush; settle; cut 3; append 0 2 90; flush; settle"
    ),
    "cuts one after the other": (
        "8* append 0 2 400; flush; settle; cut 4; append 0 1 90; cut 6; append 0 1 90; flush; cut 3; append 0 1 90; "
        "settle"
    ),
    "a log begins anew": "6* append 1 2 900; flush; settle; points; settle; restart 50; append 1 2 90; flush; settle",
    "a follower": "follow 5 2 300; follow 9 1 700; flush; follow 3 3 100; settle; epochs; follow 2 1 90; flush; settle",
    "a follower that truncates": "follow 9 2 500; flush; settle; marks; points; cut 7; follow 5 2 400; flush; settle",
    "clean stops": "4* append 1 2 400; stop; 4* append 1 2 400; stop; stop; append 1 1 90; settle",
    "a clean stop of much": "20* append 1 2 500; txn 2 1 90; abort 2; mark; stop; append 1 1 90; flush; settle; stop",
    "a clean stop while it flushes": "9* append 0 2 700; flush; roll; points; marks; append 0 1 90; stop; append 0 1 9",
    "killed": "7* append 1 2 400; kill; 7* append 1 2 400; roll; kill; append 1 1 90; flush; settle",
    "killed between rolls": (
        "append 0 2 900; roll; kill; append 0 2 900; flush; settle; roll; kill; append 0 1 9; settle"
    ),
    "indexes vanish": (
        "20* append 1 2 700; txn 2 1 90; abort 2; roll; append 1 1 90; mark; blind; append 1 1 90; flush; settle"
    ),
    "two partitions": (
        "append 0 1 90; on 1; create; append 1 2 400; flush; on 0; append 0 9 90; roll; on 1; roll; settle; "
        "append 0 1 9"
    ),
    "a partition goes": (
        "on 1; create; 5* append 0 2 900; flush; settle; points; settle; delete; settle; wait 50; settle"
    ),
    "a partition comes back": (
        "on 1; create; 5* append 1 2 900; flush; settle; points; marks; settle; delete; create; append 1 1 90; "
        "flush; settle"
    ),
    "a partition comes back after its log start moved": (
        "on 1; create; 9* append 0 2 700; mark; start 3; starts; flush; settle; points; delete; wait 50; create; "
        "2* append 0 1 90; flush; settle; stop; append 0 1 9; settle"
    ),
}
SCRIPTS.update(COMPACTION | MOVES)
