"""Options that take names of topics and groups, and the completion of these names in a shell.

Zone: real. Completion asks the cluster that the words before name; without an answer in time, it offers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.options import connect_cluster

if TYPE_CHECKING:
    from ottla.client import Cluster

F = TypeVar("F", bound=Callable[..., Any])
_PATIENCE_MS = 1_500
"""A user who presses Tab does not wait longer."""


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For `shell_complete`: topics; internal ones only when the word begins like one."""
    from ottla.client import Admin

    internal = incomplete.startswith("_")
    return _complete_names(
        ctx, param, incomplete, lambda cluster: (each.name for each in Admin(cluster).list_topics(internal=internal))
    )


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For `shell_complete`: consumer groups."""
    from ottla.client.admin.groups import GroupAdmin

    return _complete_names(
        ctx,
        param,
        incomplete,
        lambda cluster: (each.group_id for each in GroupAdmin(cluster).list_groups()[0]),
    )


def complete_entities(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For `shell_complete`: owners of settings, as in `topic/orders`."""
    from ottla.cli.entities import entity_text, list_entities

    return _complete_names(
        ctx, param, incomplete, lambda cluster: (entity_text(each) for each in list_entities(cluster))
    )


def _complete_names(
    ctx: click.Context, param: click.Parameter, incomplete: str, ask: Callable[[Cluster], Iterable[str]]
) -> list[str]:
    found: list[str] = []
    # An error is not shown: a shell that completes a word has no place for a message.
    with (
        _without_logs(),
        suppress(Exception),
        ctx.scope(cleanup=False),
        connect_cluster(overrides=_quick_settings()) as cluster,
    ):
        found = sorted(name for name in ask(cluster) if name.startswith(incomplete))
    given_already = ctx.params.get(param.name or "") or ()
    taken = (given_already,) if isinstance(given_already, str) else given_already
    return [name for name in found if name not in taken]


@contextmanager
def _without_logs() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _quick_settings() -> dict[str, str | int | bool]:
    keys = ("default.api.timeout.ms", "request.timeout.ms", "socket.connection.setup.timeout.ms")
    return dict.fromkeys(keys, _PATIENCE_MS)


def topic_words(command: F) -> F:
    """TOPIC, or `-t`/`--topic`; see `named_topic`."""
    command = click.option(
        "-t",
        "--topic",
        "topic_option",
        metavar="NAME",
        shell_complete=complete_topics,
        help="Another way to name the topic.",
    )(command)
    return click.argument("topic", required=False, shell_complete=complete_topics)(command)


def several_topics(command: F) -> F:
    """TOPIC…, or `-t`/`--topic`, as `topics` and `more`."""
    command = click.option(
        "-t",
        "--topic",
        "more",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_topics,
        help="Another way to name a topic.",
    )(command)
    return click.argument("topics", nargs=-1, metavar="[TOPIC]…", shell_complete=complete_topics)(command)


def named_topic(topic: str | None, topic_option: str | None) -> str:
    """The topic of `topic_words`. Raises click.UsageError when there is none."""
    name = topic or topic_option
    if name is None:
        raise click.UsageError("name the topic")
    return name
