"""The laws of Disk and File, for every implementation.

Zone: real. Behaviour of one implementation alone is tested beside it.
"""

from __future__ import annotations

import pytest

from ottla.seams import Failure, Kind, Region


def ask(done, call, *arguments):
    """Call a method that takes `done`; law 1: it may not call it before it returns."""
    done.inside += 1
    call(*arguments, done)
    done.inside -= 1


def content(file) -> bytes:
    into = bytearray(file.size + 10)
    return bytes(into[: file.read_now(0, memoryview(into))])


def test_appends_stand_one_after_the_other(rig):
    file = rig.disk.open("a.log", True)
    assert file.append([b"one"]) == 0
    assert file.append([bytearray(b"two"), memoryview(b"three")]) == 3
    assert file.size == 11
    assert content(file) == b"onetwothree"


def test_an_append_of_two_thousand_parts_is_one_append(rig):
    file = rig.disk.open("a.log", True)
    file.append([b"%04d" % n for n in range(2000)])
    assert file.size == 8000
    assert content(file)[-4:] == b"1999"


def test_an_append_of_nothing_takes_nothing(rig):
    file = rig.disk.open("a.log", True)
    assert file.append([]) == 0
    assert file.append([b""]) == 0
    assert file.size == 0


def test_arguments_are_borrowed(rig):
    file = rig.disk.open("a.log", True)
    mine = bytearray(b"before")
    file.append([mine])
    mine[:] = b"after!"
    assert content(file) == b"before"


def test_a_missing_file_is_not_done(rig):
    with pytest.raises(Failure) as refused:
        rig.disk.open("missing.log", False)
    assert refused.value.kind is Kind.NOT_DONE


def test_an_existing_file_counts_with_its_length(rig):
    rig.disk.open("a.log", True).append([b"12345"])
    rig.disk.open("a.log", False).close()
    assert rig.disk.open("a.log", False).size == 5


def test_two_opens_of_one_file_agree_on_its_size(rig):
    first = rig.disk.open("a.log", True)
    second = rig.disk.open("a.log", False)
    first.append([b"123"])
    assert second.append([b"45"]) == 3
    first.close()
    assert content(second) == b"12345"


def test_reading_past_the_end_gives_less(rig):
    file = rig.disk.open("a.log", True)
    file.append([b"0123456789"])
    into = bytearray(8)
    assert file.read_now(6, memoryview(into)) == 4
    assert into[:4] == b"6789"
    assert file.read_now(10, memoryview(into)) == 0
    assert file.read_now(99, memoryview(into)) == 0


def test_fresh_bytes_are_resident(rig):
    file = rig.disk.open("a.log", True)
    file.append([b"0123456789"])
    into = bytearray(4)
    assert file.try_read(3, memoryview(into)) == 4
    assert into == b"3456"
    assert file.try_read(10, memoryview(into)) == 0
    assert file.try_read(11, memoryview(into)) == 0


def test_read_comes_back_in_a_turn(rig, outcomes):
    file = rig.disk.open("a.log", True)
    file.append([b"0123456789"])
    done = outcomes()
    ask(done, file.read, 2, 3)
    ask(done, file.read, 8, 100)
    rig.until(lambda: len(done) == 2)
    assert sorted(done) == [b"234", b"89"]


def test_the_view_of_a_sealed_file_is_its_content(rig):
    for name, size in (("small", 10), ("large", 100_000)):
        file = rig.disk.open(name, True)
        file.append([bytes([7]) * size])
        file.seal()
        view = file.view()
        assert view.readonly
        assert bytes(view) == bytes([7]) * size


def test_the_view_of_an_empty_file_is_empty(rig):
    file = rig.disk.open("a.index", True)
    file.seal()
    assert bytes(file.view()) == b""


def test_truncate_grows_the_generation(rig):
    file = rig.disk.open("a.log", True)
    file.append([b"0123456789"])
    before = file.generation
    file.truncate(4)
    assert file.generation == before + 1
    assert file.size == 4
    assert file.append([b"xy"]) == 4
    assert content(file) == b"0123xy"


def test_a_file_has_its_own_length_whatever_ended_it(rig):
    for end in ("seal", "truncate", "close"):
        path = f"{end}.index"
        file = rig.disk.open(path, True)
        assert file.size == 0
        file.append([b"12345678"])
        assert content(file) == b"12345678"
        if end == "truncate":
            file.truncate(8)
        elif end == "seal":
            file.seal()
            file.seal()
        file.close()
        assert rig.disk.open(path, False).size == 8


def test_sync_tells_the_size_at_submit_and_makes_it_durable(rig, outcomes):
    file = rig.disk.open("a.log", True)
    done = outcomes()
    file.append([b"123"])
    ask(done, file.sync)
    file.append([b"45"])
    ask(done, file.sync)
    ask(done, file.sync)
    rig.until(lambda: len(done) == 3)
    assert done == [3, 5, 5]
    assert file.durable == 5


def test_truncation_takes_back_what_was_durable(rig, outcomes):
    file = rig.disk.open("a.log", True)
    file.append([b"0123456789"])
    done = outcomes()
    ask(done, file.sync)
    file.truncate(4)
    file.append([b"new"])
    rig.until(lambda: len(done) == 1)
    assert file.durable <= 4
    ask(done, file.sync)
    rig.until(lambda: len(done) == 2)
    assert file.durable == 7


def test_outstanding_syncs_complete_after_close(rig, outcomes):
    file = rig.disk.open("a.log", True)
    file.append([b"123"])
    done = outcomes()
    ask(done, file.sync)
    ask(done, file.sync)
    file.close()
    rig.until(lambda: len(done) == 2)
    assert done == [3, 3]


def test_each_completion_is_a_turn_of_its_own(rig, outcomes):
    """Law 1: what a completion asks for comes after the completions that were there before it."""
    file = rig.disk.open("a.log", True)
    order = []
    late = outcomes()

    def first(_size):
        order.append("first")
        ask(late, file.sync)
        order.append("first ends")

    file.sync(first)
    file.sync(lambda _size: order.append("second"))
    rig.until(lambda: len(late) == 1)
    assert order == ["first", "first ends", "second"]


def test_a_handle_survives_rename_and_unlink(rig, outcomes):
    file = rig.disk.open("a.log", True)
    file.append([b"123"])
    rig.disk.rename("a.log", "b.log")
    file.append([b"45"])
    assert rig.disk.open("b.log", False).size == 5
    done = outcomes()
    ask(done, rig.disk.unlink, "b.log")
    rig.until(lambda: len(done) == 1)
    assert done == [None]
    assert not rig.disk.exists("b.log")
    assert content(file) == b"12345"


def test_a_handle_follows_the_rename_of_its_directory(rig):
    rig.disk.make_dir("t-0")
    file = rig.disk.open("t-0/a.log", True)
    file.append([b"123"])
    rig.disk.rename("t-0", "t-0.deleted")
    file.append([b"45"])
    file.close()
    assert rig.disk.open("t-0.deleted/a.log", False).size == 5


def test_a_new_file_of_an_unlinked_name_is_another_file(rig, outcomes):
    old = rig.disk.open("a.log", True)
    old.append([b"old"])
    done = outcomes()
    ask(done, rig.disk.unlink, "a.log")
    rig.until(lambda: len(done) == 1)
    new = rig.disk.open("a.log", True)
    assert new.size == 0
    new.append([b"n"])
    assert content(old) == b"old"
    assert content(new) == b"n"


def test_rename_replaces_and_the_old_handle_keeps_its_bytes(rig):
    old = rig.disk.open("a.log", True)
    old.append([b"old"])
    rig.disk.open("a.log.swap", True).append([b"swap!"])
    rig.disk.rename("a.log.swap", "a.log")
    assert content(old) == b"old"
    assert content(rig.disk.open("a.log", False)) == b"swap!"


def test_names_are_listed_sorted(rig):
    assert rig.disk.make_dir("t-1")
    assert not rig.disk.make_dir("t-1")
    rig.disk.open("z", True)
    rig.disk.open("a", True)
    rig.disk.open("t-1/inside", True)
    assert list(rig.disk.list("")) == ["a", "t-1/", "z"]
    assert list(rig.disk.list("t-1")) == ["inside"]
    with pytest.raises(Failure) as refused:
        rig.disk.list("missing")
    assert refused.value.kind is Kind.NOT_DONE


def test_a_directory_goes_with_all_that_is_in_it(rig, outcomes):
    rig.disk.make_dir("t-0")
    file = rig.disk.open("t-0/a.log", True)
    file.append([b"kept"])
    rig.disk.open("t-0/b.log", True).close()
    done = outcomes()
    ask(done, rig.disk.unlink, "t-0")
    rig.until(lambda: len(done) == 1)
    assert done == [None]
    assert not rig.disk.exists("t-0")
    assert content(file) == b"kept"


def test_removing_what_is_not_there(rig, outcomes):
    rig.disk.unlink_now("missing")
    done = outcomes()
    ask(done, rig.disk.unlink, "missing")
    rig.until(lambda: len(done) == 1)
    assert done[0].kind is Kind.NOT_DONE


def test_a_checkpoint_is_replaced_whole_and_in_order(rig, outcomes):
    done = outcomes()
    for n in range(20):
        ask(done, rig.disk.replace_file, "checkpoint", b"%d" % n * 100)
    rig.until(lambda: len(done) == 20)
    assert done == [None] * 20
    assert content(rig.disk.open("checkpoint", False)) == b"19" * 100
    assert list(rig.disk.list("")) == ["checkpoint"]
    rig.disk.replace_now("checkpoint", b"last")
    assert content(rig.disk.open("checkpoint", False)) == b"last"


@pytest.mark.parametrize("on_their_way", [1, 3])
def test_a_checkpoint_written_at_once_is_the_last_of_those_asked_for(rig, outcomes, on_their_way):
    done = outcomes()
    for n in range(on_their_way):
        ask(done, rig.disk.replace_file, "checkpoint", b"%d" % n)
    rig.disk.replace_now("checkpoint", b"last")
    assert done == []
    assert content(rig.disk.open("checkpoint", False)) == b"last"
    rig.until(lambda: len(done) == on_their_way)
    assert done == [None] * on_their_way
    assert content(rig.disk.open("checkpoint", False)) == b"last"
    assert list(rig.disk.list("")) == ["checkpoint"]
    ask(done, rig.disk.replace_file, "checkpoint", b"later")
    rig.until(lambda: len(done) == on_their_way + 1)
    assert content(rig.disk.open("checkpoint", False)) == b"later"


def test_a_checkpoint_in_a_missing_directory_is_a_failure(rig, outcomes):
    done = outcomes()
    ask(done, rig.disk.replace_file, "missing/checkpoint", b"x")
    rig.until(lambda: len(done) == 1)
    assert done[0].kind is Kind.NOT_DONE
    with pytest.raises(Failure):
        rig.disk.replace_now("missing/checkpoint", b"x")


def test_directories_are_synced(rig, outcomes):
    rig.disk.make_dir("t-0")
    done = outcomes()
    ask(done, rig.disk.sync_dir, "t-0")
    ask(done, rig.disk.sync_dir, "")
    rig.until(lambda: len(done) == 2)
    assert done == [None, None]
    rig.disk.sync_now("t-0")
    rig.disk.sync_now("")


def test_a_directory_is_synced_as_a_whole(rig, outcomes):
    rig.disk.make_dir("t-0")
    rig.disk.open("t-0/a.log", True).append([b"one"])
    assert rig.disk.sync_all_now() in (True, False)
    done = outcomes()
    ask(done, rig.disk.sync_all)
    rig.until(lambda: len(done) == 1)
    assert done in ([True], [False])
    assert rig.disk.read_small("t-0/a.log") == b"one"
    with pytest.raises(Failure) as refused:
        rig.disk.read_small("t-0/missing")
    assert refused.value.kind is Kind.NOT_DONE


def test_warm_comes_back_and_then_the_bytes_are_resident(rig, outcomes):
    file = rig.disk.open("a.log", True)
    file.append([b"0123456789" * 100_000])
    done = outcomes()
    ask(done, rig.disk.warm_regions, [Region(file, 10, 999_990, file.generation)])
    rig.until(lambda: len(done) == 1)
    assert done == [None]


def test_the_file_system_has_room_and_files_have_a_time(rig):
    assert 0 < rig.disk.free_bytes() <= rig.disk.total_bytes()
    rig.disk.open("a.log", True).append([b"x"])
    assert rig.disk.modified_ms("a.log") > 0
    with pytest.raises(Failure):
        rig.disk.modified_ms("missing")
