"""The effect of a power loss on one file.

Zone: real.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.sim.disks.inode import PAGE, SECTOR, Inode, LossPattern
from ottla.sim.entropy import Stream


def inode_with(synced: bytes, dirty: bytes) -> Inode:
    inode = Inode()
    inode.append([synced], 0)
    inode.end_sync(inode.start_sync())
    inode.append([dirty], 0)
    return inode


@given(st.binary(max_size=3 * PAGE), st.binary(max_size=4 * PAGE), st.sampled_from(LossPattern), st.integers(0, 999))
def test_what_was_synced_is_there_and_nothing_is_longer_than_it_was(synced, dirty, pattern, seed):
    inode = inode_with(synced, dirty)
    inode.power_loss(pattern, Stream(seed, "disk"))
    assert inode.data[: len(synced)] == synced
    assert len(inode.data) <= len(synced) + len(dirty)
    assert inode.durable == len(inode.data)


def test_a_kill_loses_nothing():
    inode = inode_with(b"synced", b"dirty")
    inode.on_process_gone()
    assert inode.data == b"synceddirty"
    assert inode.durable == 6


def test_without_write_back_only_the_synced_part_is_left():
    for seed in range(20):
        inode = inode_with(b"s" * 100, b"d" * 9000)
        inode.power_loss(LossPattern.NONE, Stream(seed, "disk"))
        assert inode.data in (b"s" * 100, b"s" * 100 + bytes(9000))


def test_pages_meet_every_fate():
    kept = dropped = torn = 0
    for seed in range(40):
        inode = inode_with(b"", b"\xff" * (8 * PAGE))
        inode.power_loss(LossPattern.EACH, Stream(seed, "disk"))
        for start in range(0, len(inode.data), PAGE):
            page = bytes(inode.data[start : start + PAGE])
            ones = sum(byte.bit_count() for byte in page)
            sectors = {bytes(page[at : at + SECTOR]) for at in range(0, len(page), SECTOR)}
            kept += ones == PAGE * 8
            dropped += ones == 0
            torn += len(sectors) == 2 and sectors == {bytes(SECTOR), b"\xff" * SECTOR}
    assert min(kept, dropped, torn) > 5


def test_a_prefix_pattern_keeps_no_page_behind_the_torn_one():
    for seed in range(20):
        inode = inode_with(b"", b"\xff" * (6 * PAGE))
        inode.power_loss(LossPattern.PREFIX, Stream(seed, "disk"))
        whole = [inode.data[at : at + PAGE] == b"\xff" * PAGE for at in range(0, 6 * PAGE, PAGE)]
        assert whole == sorted(whole, reverse=True)


def test_a_truncation_that_was_not_synced_may_come_back():
    seen = set()
    for seed in range(40):
        inode = inode_with(b"old bytes", b"")
        inode.truncate(3, 0)
        assert inode.durable == 3
        inode.power_loss(LossPattern.NONE, Stream(seed, "disk"))
        seen.add(bytes(inode.data))
    assert seen == {b"old", b"old bytes"}


def test_a_synced_truncation_stays():
    inode = inode_with(b"old bytes", b"")
    inode.truncate(3, 0)
    inode.end_sync(inode.start_sync())
    inode.power_loss(LossPattern.NONE, Stream(1, "disk"))
    assert inode.data == b"old"


def test_a_sync_that_ran_while_the_file_was_cut_covers_only_what_is_left():
    inode = inode_with(b"", b"0123456789")
    cell = inode.start_sync()
    inode.truncate(4, 0)
    inode.append([b"new"], 0)
    inode.end_sync(cell)
    assert inode.durable == 4


def test_after_a_failed_sync_the_bytes_are_seen_until_they_are_read_again():
    inode = inode_with(b"kept", b"lost")
    inode.fail_sync(inode.start_sync())
    assert inode.data == b"keptlost"
    assert inode.durable == 4
    inode.end_sync(inode.start_sync())
    assert inode.durable == 4, "a second sync has nothing to write: the pages are clean"
    inode.evict_lost()
    assert inode.data == b"kept\0\0\0\0"
