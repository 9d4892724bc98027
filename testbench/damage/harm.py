"""Damage of a file at rest.

Zone: deterministic. A seeded stream chooses everything; each harm has a description in words.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.sim.disks.drive import Drive
from ottla.sim.disks.inode import Inode
from ottla.sim.entropy import Stream

HARMS = ("flip", "truncate", "zero", "swap")
KINDS = (
    ".log", ".index", ".timeindex", ".txnindex", ".snapshot", "txnindex-checksums", "leader-epoch-checkpoint",
    "partition.metadata", "recovery-point-offset-checkpoint", "replication-offset-checkpoint",
    "log-start-offset-checkpoint", "cleaner-offset-checkpoint", "meta.properties", ".kafka_cleanshutdown",
)  # fmt: skip


class Harm(NamedTuple):
    """The damage of one file."""

    path: str
    kind: str
    """The kind of the file."""
    harm: str
    what: str


JOURNAL = "__znodes-0"
"""The kind of the files of the embedded metadata store."""


def kind_of(path: str) -> str:
    """The kind of a file; empty if it does not belong to a data directory."""
    if path.startswith(JOURNAL):
        return JOURNAL
    return next((kind for kind in KINDS if path.endswith(kind)), "")


def strike(drive: Drive, random: Stream, kinds: tuple[str, ...] = KINDS) -> Harm | None:
    """Damage one file: choose one of the existing kinds, then a file of that kind. None: impossible."""
    files: dict[str, list[tuple[str, Inode]]] = {}
    for path, inode in drive.walk_files():
        if kind_of(path) in kinds and inode.data:
            files.setdefault(kind_of(path), []).append((path, inode))
    if not files:
        return None
    kind = random.choice(sorted(files))
    path, inode = random.choice(files[kind])
    harm = random.choice(HARMS)
    others = [(other, twin) for other, twin in files[kind] if twin is not inode and twin.data != inode.data]
    if kind == ".log":
        # A batch does not name its partition: one with the same offsets would be taken for the other's.
        others = [(other, twin) for other, twin in others if other.partition("/")[0] == path.partition("/")[0]]
    if harm == "swap" and others:
        what = _swap(inode, *random.choice(others))
    else:
        harm = "flip" if harm == "swap" else harm
        what = {"flip": _flip, "truncate": _truncate, "zero": _zero}[harm](inode, random)
    inode.sealed = None
    inode.synced = len(inode.data)
    return Harm(path, kind, harm, what)


def _flip(inode: Inode, random: Stream) -> str:
    places = [random.random_below(len(inode.data)) for _ in range(random.choice((1, 1, 1, 2, 8)))]
    for place in places:
        inode.data[place] ^= 1 << random.random_below(8)
    return f"a bit of each of the bytes {places}"


def _truncate(inode: Inode, random: Stream) -> str:
    before = len(inode.data)
    del inode.data[random.random_below(before) :]
    return f"{len(inode.data)} bytes are left of {before}"


def _zero(inode: Inode, random: Stream) -> str:
    start = random.random_below(len(inode.data))
    end = min(len(inode.data), start + random.choice((1, 8, 64, 512, 4096)))
    inode.data[start:end] = bytes(end - start)
    return f"zeros from {start} to {end}"


def _swap(inode: Inode, path: str, other: Inode) -> str:
    inode.data, other.data = other.data, inode.data
    other.sealed = None
    other.synced = len(other.data)
    return f"changed places with {path}"
