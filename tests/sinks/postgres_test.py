"""Results and offsets in one transaction: a real PostgreSQL, real events, and faults in between."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest
from testbench.postgres import Postgres
from testbench.proxy import Proxy
from tests.sinks.conftest import RECORDS, Changes, folder_and_lines

from ottla.client import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.sinks.postgres import (
    BadDatabase,
    BadResults,
    DatabaseGone,
    Feed,
    OffsetsMoved,
    PostgresSink,
    Rows,
    Superseded,
    UsageError,
)
from ottla.sinks.postgres.database import Cursor

Store = Callable[[Cursor, Sequence[ConsumerRecord]], None]
Stored = Callable[[], Counter[str]]
PLACE = TopicPartition("changes", 0)


@pytest.fixture
def store(totals: str) -> Store:
    def add(cursor: Cursor, records: Sequence[ConsumerRecord]) -> None:
        sums: Counter[str] = Counter()
        for record in records:
            folder, lines = folder_and_lines(record)
            sums[folder] += lines
        cursor.executemany(
            f"INSERT INTO {totals} AS t VALUES (%s, %s) "
            "ON CONFLICT (folder) DO UPDATE SET added = t.added + EXCLUDED.added",
            sorted(sums.items()),
        )

    return add


@pytest.fixture
def sink(postgres: Postgres, totals: str) -> Iterator[PostgresSink]:
    with PostgresSink(postgres.conninfo, totals) as sink:
        yield sink


def consume(changes: Changes, sink: PostgresSink, store: Store, polls: int = 1000) -> int:
    """A consumer from its start to the end of the topic, or for this many polls. Returns how many records were new."""
    with changes.consumer() as consumer:
        feed = sink.assign(consumer, changes.partitions)
        written = 0
        for _ in range(polls):
            written += feed.write(consumer.poll(0.1), store)
            if sum(offset or 0 for offset in feed.positions.values()) == RECORDS:
                break
        return written


def one(offset: int, partition: int = 0) -> ConsumerRecord:
    value = b'{"path": "a/b", "added": %d}' % (offset + 1)
    return ConsumerRecord("changes", partition, offset, 0, 0, None, value, (), -1)


def test_a_consumer_continues_at_the_stored_offset_and_a_replay_changes_nothing(
    changes: Changes, sink: PostgresSink, postgres: Postgres, store: Store, stored: Stored
) -> None:
    first = consume(changes, sink, store, polls=3)
    assert 0 < first < RECORDS
    assert consume(changes, sink, store) == RECORDS - first
    assert stored() == changes.added
    assert sum(sink.offsets().values()) == RECORDS
    with changes.consumer() as consumer:  # a client that does not seek reads all again, and nothing is new
        consumer.assign(changes.partitions)
        feed = sink.claim(changes.partitions)
        seen = 0
        while seen < RECORDS:
            records = consumer.poll(0.1)
            seen += len(records)
            assert feed.write(records, store) == 0
    assert stored() == changes.added


def test_a_group_begins_at_the_stored_offsets_and_not_at_its_own(
    changes: Changes, sink: PostgresSink, store: Store, stored: Stored
) -> None:
    assert consume(changes, sink, store, polls=3) < RECORDS
    with changes.consumer(group_id="g-" + sink.name) as consumer:  # this group has committed nothing
        feed = sink.subscribe(consumer, [changes.topic])
        while sum(offset or 0 for offset in feed.positions.values()) < RECORDS:
            feed.write(consumer.poll(0.1), store)
        assert set(feed.positions) == set(changes.partitions)
    assert feed.positions == {}
    assert stored() == changes.added


def test_a_zombie_loses_by_the_lock_and_writes_nothing(sink: PostgresSink, store: Store, stored: Stored) -> None:
    zombie, successor = sink.claim([PLACE]), sink.claim([PLACE])
    with pytest.raises(Superseded, match=r"changes-0 was claimed .*epoch 2, ours is 1.*Stop this consumer"):
        zombie.write([one(0)], store)
    assert successor.write([one(0), one(1)], store) == 2
    with pytest.raises(Superseded):
        zombie.write([one(0)], store)
    assert stored() == {"a": 3}


def test_a_zombie_that_hangs_in_its_own_code_is_superseded(
    sink: PostgresSink, postgres: Postgres, store: Store, stored: Stored
) -> None:
    zombie = sink.claim([PLACE])

    def slow(cursor: Cursor, records: Sequence[ConsumerRecord]) -> None:
        with PostgresSink(postgres.conninfo, sink.name) as other:  # not kept waiting by the open transaction
            assert other.claim([PLACE]).write([one(0)], store) == 1
        cursor.execute(f"INSERT INTO {sink.name} VALUES ('zombie', 1)")

    with pytest.raises(Superseded):
        zombie.write([one(0)], slow)
    assert stored() == {"a": 1}


def test_offsets_that_somebody_else_moved_are_not_written_over(
    sink: PostgresSink, postgres: Postgres, store: Store, stored: Stored
) -> None:
    feed = sink.claim([PLACE])
    feed.write([one(0)], store)
    postgres.execute("UPDATE ottla_offsets SET next_offset = 7 WHERE sink = %s", sink.name)
    with pytest.raises(OffsetsMoved, match="stored offset of changes-0 is 7, and this consumer wrote 1 last"):
        feed.write([one(1)], store)
    sink.forget()
    with pytest.raises(OffsetsMoved, match="is None"):
        feed.write([one(1)], store)
    assert stored() == {"a": 1}
    assert sink.offsets() == {}


def test_a_store_that_raises_leaves_nothing_and_may_be_tried_again(
    sink: PostgresSink, store: Store, stored: Stored
) -> None:
    feed = sink.claim([PLACE])

    def failing(cursor: Cursor, records: Sequence[ConsumerRecord]) -> None:
        store(cursor, records)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        feed.write([one(0)], failing)
    assert stored() == {}
    assert feed.positions == {PLACE: None}
    assert feed.write([one(0)], store) == 1
    assert stored() == {"a": 1}


@pytest.fixture
def let_commit(postgres: Postgres, totals: str) -> Iterator[Callable[[], None]]:
    """A COMMIT of the table waits, before anything of it is durable, until this is called or the server dies."""
    postgres.execute(
        "CREATE OR REPLACE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$"
    )
    postgres.execute(
        f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {totals} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    with psycopg.connect(postgres.conninfo, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        yield holder.close


def while_committing(postgres: Postgres, action: Callable[[], None]) -> threading.Thread:
    """Runs the action as soon as a COMMIT is under way."""

    def watch() -> None:
        while not postgres.execute("SELECT 1 FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active'"):
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_commit_whose_answer_is_lost_counts_once(
    postgres: Postgres, totals: str, store: Store, stored: Stored, let_commit: Callable[[], None]
) -> None:
    """The server carries it out although the connection is gone, while the sink writes again: only one may win."""
    proxy = Proxy("127.0.0.1", postgres.port)
    calls = 0
    again = threading.Event()

    def counted(cursor: Cursor, records: Sequence[ConsumerRecord]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            again.set()
        store(cursor, records)

    def lose_the_answer() -> None:
        proxy.cut()
        again.wait(60)
        let_commit()

    try:
        with PostgresSink(postgres.conninfo.replace(str(postgres.port), str(proxy.port)), totals) as sink:
            feed = sink.claim([PLACE])
            thread = while_committing(postgres, lose_the_answer)
            assert feed.write([one(0)], counted) == 1
            thread.join()
            assert feed.positions == {PLACE: 1}
            assert feed.write([one(1)], store) == 1
    finally:
        proxy.stop()
    assert calls == 2
    assert stored() == {"a": 3}


@pytest.mark.slow
@pytest.mark.usefixtures("let_commit")
def test_a_server_killed_in_the_middle_of_a_commit(
    postgres: Postgres, sink: PostgresSink, store: Store, stored: Stored
) -> None:
    feed = sink.claim([PLACE])

    def kill_and_come_back() -> None:
        postgres.kill()
        time.sleep(0.3)
        postgres.start()

    thread = while_committing(postgres, kill_and_come_back)
    assert feed.write([one(0), one(1)], store) == 2
    thread.join()
    assert stored() == {"a": 3}
    assert sink.offsets() == {PLACE: 2}


@pytest.mark.slow
def test_a_database_that_is_away_longer_than_the_patience_loses_nothing(
    postgres: Postgres, totals: str, store: Store, stored: Stored
) -> None:
    with PostgresSink(postgres.conninfo, totals, patience_s=0.3) as sink:
        feed = sink.claim([PLACE])
        feed.write([one(0)], store)
        postgres.stop()
        with pytest.raises(DatabaseGone, match=r"was unreachable for 0\.3 s .*write the same records again"):
            feed.write([one(1)], store)
        postgres.start()
        assert feed.write([one(0), one(1)], store) == 1
    assert stored() == {"a": 3}


@pytest.mark.slow
def test_kills_of_the_server_and_of_consumers_leave_the_exact_totals(
    changes: Changes, postgres: Postgres, sink: PostgresSink, store: Store, stored: Stored
) -> None:
    """Every few writes the server is killed at a random moment, or the consumer forgotten in favour of a new one."""
    chance = random.Random(5)
    written = 0
    while written < RECORDS:
        with changes.consumer(max_poll_records="100") as consumer:
            feed: Feed = sink.assign(consumer, changes.partitions)
            killer = threading.Timer(chance.uniform(0, 0.05), lambda: (postgres.kill(), postgres.start()))
            killer.start()
            for _ in range(chance.randint(8, 12)):
                feed.write(consumer.poll(0.1), store)
            killer.join()
            written = sum(sink.offsets().values())
    assert stored() == changes.added


def test_a_unique_business_id_needs_no_offsets(postgres: Postgres, sink: PostgresSink, stored: Stored) -> None:
    rows = Rows(sink.name, key=("folder",), conflict="nothing")
    feed = sink.claim([PLACE])
    records = [one(offset) for offset in range(4)]

    def by_id(cursor: Cursor, fresh: Sequence[ConsumerRecord]) -> None:
        rows.write(cursor, ["folder", "added"], [(str(each.offset), each.offset) for each in fresh])

    feed.write(records, by_id)
    sink.forget()  # all come again, and one more
    sink.claim([PLACE]).write([*records, one(4)], by_id)
    assert stored() == {str(offset): offset for offset in range(5)}


def test_rows_replace_by_key_or_are_appended(sink: PostgresSink, postgres: Postgres, stored: Stored) -> None:
    feed = sink.claim([PLACE])
    columns = ["added", "folder"]
    replace = Rows(sink.name, key=("folder",))

    def store(cursor: Cursor, _records: Sequence[ConsumerRecord]) -> None:
        assert Rows(sink.name).write(cursor, columns, [(1, "a"), (2, "b\t\\N\n")]) == 2
        assert replace.write(cursor, columns, [(3, "b\t\\N\n"), (4, "c")]) == 2
        assert replace.write(cursor, columns, []) == 0

    feed.write([one(0)], store)
    assert stored() == {"a": 1, "b\t\\N\n": 3, "c": 4}


@pytest.mark.parametrize(
    ("rows", "columns", "values", "text"),
    [
        (Rows("nowhere"), ["folder"], ("x",), "nowhere.*Create the table first"),
        (Rows("{}"), ["wrong"], ("x",), "wrong.*Select only columns that the table has"),
        (Rows("{}", ("added",)), ["folder", "added"], ("x", 1), "Give the table a unique constraint"),
        (Rows("{}"), ["folder", "added"], ("x", None), "null.*Filter such rows"),
        (Rows("{}"), ["folder", "added"], ("x", "much"), "much.*Cast the column"),
        (Rows("{}", ("folder",)), ["folder", "added"], ("x", 1), "second time.*Aggregate first"),
        (Rows("{}"), ["folder", "added"], ("x", 1), "duplicate key.*ids that are unique"),
    ],
    ids=["table", "column", "key", "null", "type", "twice", "unique"],
)
def test_results_that_do_not_fit_are_refused_with_the_next_step(
    sink: PostgresSink, stored: Stored, rows: Rows, columns: list[str], values: tuple[object, ...], text: str
) -> None:
    feed = sink.claim([PLACE])
    fitted = rows._replace(table=rows.table.format(sink.name))
    with pytest.raises(BadResults, match=f"(?s)table {fitted.table}.*{text}"):
        feed.write([one(0)], lambda cursor, _: fitted.write(cursor, columns, [values, values]))
    assert stored() == {}
    assert sink.offsets() == {}


def test_calls_that_cannot_be_right_are_refused(sink: PostgresSink, store: Store) -> None:
    feed = sink.claim([PLACE])
    with pytest.raises(UsageError, match="changes-1 was not claimed"):
        feed.write([one(0, partition=1)], store)
    feed.write([one(0), one(1)], store)
    with pytest.raises(UsageError, match="offset 1 of changes-0 is stored already"):
        feed.write_to({PLACE: 1}, lambda cursor: None)
    with pytest.raises(UsageError, match="key column folder is not among"):
        feed.write([one(2)], lambda cursor, _: Rows("t", ("folder",)).write(cursor, ["added"], []))


def test_a_database_that_will_not_have_us_is_not_waited_for(postgres: Postgres) -> None:
    wrong = postgres.conninfo.removesuffix("postgres") + "nowhere"
    with PostgresSink(wrong, "x") as sink, pytest.raises(BadDatabase, match='database "nowhere" does not exist'):
        sink.offsets()
    missing = PostgresSink(postgres.conninfo, "x", schema="missing")
    with (
        missing as sink,
        pytest.raises(BadDatabase, match=r"tables do not exist and cannot be created.*Create the schema"),
    ):
        sink.offsets()
    with PostgresSink("not a = connection", "x") as sink, pytest.raises(BadDatabase, match="cannot be read"):
        sink.offsets()


def test_the_tables_may_live_in_a_schema_and_two_may_make_them_at_once(postgres: Postgres) -> None:
    postgres.execute("CREATE SCHEMA audit")
    barrier, errors = threading.Barrier(4), []

    def make() -> None:
        try:
            with PostgresSink(postgres.conninfo, "x", schema="audit") as sink:
                barrier.wait()
                sink.claim([PLACE])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert postgres.execute("SELECT epoch FROM audit.ottla_offsets") == [(4,)]


def test_a_sink_goes_to_another_process_without_its_connection(
    sink: PostgresSink, stored: Stored, store: Store
) -> None:
    sink.claim([PLACE])
    copy = pickle.loads(pickle.dumps(sink))
    assert copy.claim([PLACE]).write([one(0)], store) == 1
    copy.close()
    assert stored() == {"a": 1}
