"""Workloads with compaction; the language is that of `scripts`.

Zone: pure. Tombstones may go two seconds after the pass that finds nothing older of their key. `seal` is
`roll` with a record after it: the newest record is never compacted.
"""

from __future__ import annotations

from typing import Final

COMPACTION: Final[dict[str, str]] = {
    "compaction": (
        "compact; 5* keys 1 1 2 3; 4* keys 0 4 5; seal; settle; mark; clean; keys 1 1 6; flush; settle; stop; keys 0 7"
    ),
    "compaction of what is on its way": (
        "compact; 5* keys 1 1 2 3; 4* keys 0 4 5; seal; mark; clean; keys 1 1 6; settle"
    ),
    "compaction again and again": (
        "compact; 5* keys 1 1 2 3; seal; mark; clean; 4* keys 2 2 3 4; seal; mark; clean; 4* keys 1 4 5; seal; mark; "
        "clean; keys 1 9; flush; settle; clean"
    ),
    "compaction of what is not committed": (
        "compact; 4* keys 0 1 2; roll; 4* keys 0 1 3; seal; mark 5; clean; mark; clean; keys 0 4; settle"
    ),
    "tombstones": (
        "compact; 3* keys 0 1 2 3; keys 0 -2; keys 0 -3 4; seal; mark; clean; keys 0 5; seal; mark; wait 3000; "
        "clean; keys 0 6; seal; mark; wait 3000; clean; keys 0 7; flush; settle"
    ),
    "tombstones that stay": (
        "compact; 3* keys 0 1 2 3; keys 0 -1 -2; seal; mark; clean; keys 0 5; seal; mark; clean; kill; keys 0 6; "
        "seal; mark; clean; keys 0 7; flush; settle"
    ),
    "a key that comes back": (
        "compact; 3* keys 0 1 2; keys 0 -1; seal; mark; clean; keys 0 1; seal; mark; wait 3000; clean; keys 0 -1; "
        "seal; mark; clean; wait 3000; keys 0 3; seal; mark; clean; settle"
    ),
    "compaction of transactions": (
        "compact; tkeys 1 1 2; tkeys 2 1 3; abort 1; commit 2; tkeys 1 2 4; keys 0 3; commit 1; keys 0 1; seal; "
        "mark; clean; wait 3000; keys 0 5; seal; mark; clean; keys 0 6; seal; mark; wait 3000; clean; tkeys 1 1; "
        "settle"
    ),
    "compaction of aborted transactions": (
        "compact; keys 0 1 2; 3* tkeys 1 1 2 3; roll; tkeys 2 1; 2* tkeys 1 1 2; abort 1; roll; abort 2; seal; mark; "
        "clean; keys 0 3; seal; mark; clean; wait 3000; keys 0 4; seal; mark; clean; keys 0 5; seal; wait 3000; "
        "mark; clean; settle"
    ),
    "compaction up to an open transaction": (
        "compact; keys 0 1 2; tkeys 1 1 2; 3* keys 0 1 2; roll; 3* keys 0 1 2; seal; mark; clean; commit 1; mark; "
        "clean; keys 0 9; seal; mark; clean; kill; keys 0 1; settle"
    ),
    "compaction and a marker that is not flushed": (
        "compact; keys 0 1 2; roll; tkeys 1 1; roll; flush; settle; commit 1; mark; clean; keys 0 9; settle"
    ),
    "compaction and deletion": (
        "compact-delete; 8* keys 0 1 2 3; seal; mark; clean; 5* keys 1 4 5 6; seal; mark; retain 1500; settle; "
        "clean; wait 50; keys 0 1; seal; mark; clean 20; retain 700; settle; clean; stop; keys 0 2"
    ),
    "compaction and a log start": (
        "compact; 6* keys 0 1 2 3; mark; start 7; starts; settle; seal; mark; clean; keys 0 1; seal; mark; start 3; "
        "clean; starts; retain; settle; wait 50; keys 0 2; flush; settle"
    ),
    "a cut below what is clean": (
        "compact; 4* keys 0 1 2 3; seal; mark; clean; cut 5; keys 0 1 7; keys 0 -7 8; keys 0 1; seal; mark; clean; "
        "flush; settle; wait 3000; keys 0 9; seal; mark; clean"
    ),
    "a cut during compaction": (
        "compact; 4* keys 0 1 2 3; roll; 3* keys 0 1 4; seal; mark; clean 25; cut 7; keys 0 1 7; seal; mark; settle; "
        "wait 61000; clean; keys 0 8; flush; settle"
    ),
    "a kill during compaction": (
        "compact; 4* keys 1 1 2 3; roll; 4* keys 2 1 4; seal; mark; marks; settle; clean 25; kill; keys 1 1; mark; "
        "clean 40; kill; mark; clean; stop; keys 1 5; settle"
    ),
    "a clean stop during compaction": (
        "compact; 4* keys 1 1 2 3; roll; 4* keys 2 1 4; seal; mark; clean 25; stop; keys 1 1; mark; clean 45; stop; "
        "mark; clean; stop; keys 2 5; settle"
    ),
    "appends during compaction": (
        "compact; 5* keys 1 1 2 3; seal; mark; clean 9; keys 1 1; keys 2 2; roll; some 9; keys 1 3; some 9; roll; "
        "keys 2 1; mark; settle; clean; keys 1 4; flush; settle"
    ),
    "producers of a compacted log": (
        "compact; keys 1 1; keys 2 1; keys 3 1; tkeys 4 1; commit 4; 4* keys 0 1; seal; mark; clean; kill; keys 1 1; "
        "tkeys 4 2; roll; flush; mark; clean; abort 4; keys 2 1; seal; mark; clean; kill; keys 3 1; settle"
    ),
    "leader epochs of a compacted log": (
        "compact; 2* keys 0 1 2; epochs; keys 0 1; epochs; 2* keys 0 2 3; epochs; roll; keys 0 1 2 3; epochs; seal; "
        "mark; clean; keys 0 1; epochs; kill; keys 0 4; seal; mark; clean; flush; settle"
    ),
    "indexes of a compacted log vanish": (
        "compact; 5* keys 1 1 2 3; tkeys 2 4 5; abort 2; tkeys 2 5 6; commit 2; seal; mark; clean; keys 0 7; blind; "
        "keys 1 1; seal; mark; clean; settle"
    ),
    "two compacted partitions": (
        "compact; 4* keys 0 1 2 3; on 1; create; 4* keys 1 1 2; seal; mark; on 0; seal; mark; clean; on 1; keys 1 3; "
        "delete; on 0; keys 0 4; seal; mark; clean; settle"
    ),
}
