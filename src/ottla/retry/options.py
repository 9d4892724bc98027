"""The options of the retry service, of `Retrier` and of policies: one row each.

Zone: pure. The command line and the signatures take their defaults and texts from here; `policy` checks its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.config.options import (
    BOOLEAN,
    DURATION,
    INTEGER,
    LIST,
    NUMBER,
    TEXT,
    Bounds,
    Option,
    option,
    option_table,
    options_of,
)
from ottla.retry.headers import SPRING, Names

MOVER: Final = "`Mover` and `ottla retry run`"
COMMAND: Final = "`ottla retry run`"
FIXED: Final = "`RetryPolicy.fixed`"
GROWING: Final = "`RetryPolicy.growing`"


@dataclass(frozen=True)
class ServiceOptions:
    """The options of `ottla retry run`. Without slots: `Mover` reads its defaults from the class."""

    group: str = option(
        "group", TEXT, "ottla-retry", "The consumer group whose offsets record what was moved.", scope=MOVER
    )
    instance: str = option(
        "instance", TEXT, "1", "The name of this service; each one of a group needs its own.", scope=MOVER
    )
    redis: str | None = option(
        "redis",
        TEXT,
        None,
        "Keep waiting records in Redis, as redis://host:6379/0, with TLS as rediss://host:6379/0?ssl_ca_certs=/ca.pem. "
        "`${env:NAME}` and `${file:/path:key}` keep a password out of the command line.",
        scope=COMMAND,
        default_text="in memory",
    )
    attempts: int | None = option(
        "attempts",
        INTEGER,
        None,
        "Deliveries before a record becomes a dead letter.",
        Bounds(1),
        scope=COMMAND,
        default_text="100, or delays + 1",
    )
    delays: tuple[str, ...] = option(
        "delay",
        DURATION,
        (),
        "Default delay per retry level, for records without a delay header.",
        scope=COMMAND,
        default_text="no delay",
    )
    dead: str | None = option("dead", TEXT, None, "The dead-letter topic.", scope=COMMAND, default_text="TOPIC.dead")
    every_s: float = option(
        "every", NUMBER, 10.0, "How often counters are printed, in seconds.", Bounds(0.1), scope=COMMAND
    )
    idle_s: float | None = option(
        "idle-exit",
        NUMBER,
        None,
        "Exit when no record has waited for this long, in seconds.",
        Bounds(0),
        scope=COMMAND,
        default_text="never",
    )


@dataclass(frozen=True)
class RetrierOptions:
    """The options of a `Retrier`. Without slots: the constructors read their defaults from the class."""

    group: str | None = option("group", TEXT, None, "The consumer group in which records fail, for their headers.")
    back_to: str | None = option(
        "back_to",
        TEXT,
        None,
        "The topic that records are sent back to. Several groups that read one topic each need their own, or each gets "
        "the retries of all.",
        default_text="the topic in which they failed first",
    )
    names: Names = option(
        "names",
        TEXT,
        SPRING,
        "The names of the headers: `Names` has other prefixes; `Names(text=True)` writes numbers as digits, for "
        "people.",
        default_text="those of Spring for Apache Kafka",
    )
    create: bool = option(
        "create",
        BOOLEAN,
        True,
        "Whether missing retry and dead-letter topics are created, with as many partitions as the origin has.",
    )


SERVICE_OPTIONS: Final[Mapping[str, Option]] = options_of(ServiceOptions)
RETRIER_OPTIONS: Final[Mapping[str, Option]] = options_of(RetrierOptions)
POLICY_OPTIONS: Final[Mapping[str, Option]] = option_table(
    Option(
        "delays",
        LIST,
        None,
        'The delay of each retry, as `["30s", "5m"]`; each has a topic: `orders.retry.1`, `orders.retry.2`. The last '
        "one "
        "is used for all further retries.",
        scope=FIXED,
        default_text="must be given",
    ),
    Option(
        "attempts",
        INTEGER,
        None,
        "Deliveries in all; the first one counts.",
        Bounds(1, 10_000),
        default_text="delays + 1; must be given to `growing`",
    ),
    Option("first", DURATION, "1s", "The first delay; all records wait in `orders.retry.1`.", scope=GROWING),
    Option("longest", DURATION, "15m", "The longest delay.", scope=GROWING),
    Option("factor", NUMBER, 2.0, "The factor by which delays grow.", Bounds(1, 1000), scope=GROWING),
    Option(
        "jitter",
        NUMBER,
        0.0,
        "Delays are extended by up to this share, so that records that failed together are not retried together.",
        Bounds(0, 1),
        default_text="`0`; of `growing` `0.2`",
    ),
    Option("retry_on", LIST, (), "Classes of exceptions, or their names: only these are retried.", default_text="all"),
    Option("abort_on", LIST, (), "Classes of exceptions, or their names: these are not retried, in any case."),
    Option("dead", TEXT, None, "The dead-letter topic.", default_text="`orders.dead` for `orders`"),
)
REDIS_OPTIONS: Final[Mapping[str, Option]] = option_table(
    Option("prefix", TEXT, ServiceOptions.group, "Separates services that share a server."),
    Option(
        "lease_ms",
        INTEGER,
        30_000,
        "How long a service may keep records that it has claimed, before another may claim them.",
        Bounds(0),
    ),
    Option("timeout_s", NUMBER, 5.0, "How long Redis may take to connect or to answer.", Bounds(0)),
)
