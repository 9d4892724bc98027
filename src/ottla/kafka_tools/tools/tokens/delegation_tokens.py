"""kafka-delegation-tokens: create, renew, expire and list delegation tokens.

Zone: real. As Kafka's tool, it prints the HMACs of tokens: who has one acts as the owner of the token.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from ottla.client.admin.tokens import DelegationToken, TokenAdmin
from ottla.client.cluster import Cluster
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.options import (
    SERVER,
    Option,
    Options,
    Takes,
    Tool,
    ToolError,
    flag,
    parse_words,
    refuse_together,
    require_options,
    single_action,
    value,
)

_ILLEGAL: Final = "java.lang.IllegalArgumentException"
_PERIODS: Final = ("max-life-time-period", "renew-time-period", "expiry-time-period")
_NUMBER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_REQUIRED: Final = {
    "create": ("max-life-time-period",),
    "renew": ("hmac", "renew-time-period"),
    "expire": ("hmac", "expiry-time-period"),
    "describe": (),
}
"""The options that each action needs."""
_REFUSED: Final = {
    "create": ("hmac", "renew-time-period", "expiry-time-period"),
    "renew": ("renewer-principal", "max-life-time-period", "expiry-time-period", "owner-principal"),
    "expire": ("max-life-time-period", "renew-time-period", "owner-principal"),
    "describe": ("renew-time-period", "max-life-time-period", "hmac", "expiry-time-period"),
}
"""The options that an action refuses, as Kafka's tool does."""
_COLUMNS: Final = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
_WIDTHS: Final = (15, 30, 15, 15, 25, 15, 15, 15)


def run_delegation_tokens(options: Options) -> None:
    """Carry out the one action that was given."""
    message = f"Command must include exactly one action: {', '.join(f'--{each}' for each in list(_REQUIRED)[:-1])} or "
    action = single_action(options, _REQUIRED, f"{message}--describe")
    require_options(options, "bootstrap-server", "command-config", *_REQUIRED[action])
    refuse_together(options, action, _REFUSED[action])
    with open_cluster(options) as cluster:
        _RUNS[action](cluster, options)


def _parse_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options in the words. The value of a period may be left out, and may be a negative number."""
    joined: list[str] = []
    for word in words:
        # Only here may a value that is optional begin with a dash: joptsimple knows that the option is a number.
        if joined and joined[-1].lstrip("-") in _PERIODS and _NUMBER.fullmatch(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return parse_words(options, joined)


def _create_token(cluster: Cluster, options: Options) -> None:
    renewers, period = _principals(options, "renewer-principal"), _period(options, "max-life-time-period")
    print(
        f"Calling create token operation with renewers :{_listed(renewers)} , max-life-time-period :{period}",
        flush=True,
    )
    owner = next(iter(_principals(options, "owner-principal")), None)
    token = TokenAdmin(cluster).create_delegation_token(renewers, max_lifetime_ms=period, owner=owner)
    print(f"Created delegation token with tokenId : {token.token_id}")
    _print_tokens([token])


def _renew_token(cluster: Cluster, options: Options) -> None:
    hmac, period = _hmac(options), _period(options, "renew-time-period")
    print(f"Calling renew token operation with hmac :{hmac} , renew-time-period :{period}", flush=True)
    expires_ms = TokenAdmin(cluster).renew_delegation_token(_decode_hmac(hmac), period_ms=period)
    print(f"Completed renew operation. New expiry date : {_date(expires_ms)}", end="")


def _expire_token(cluster: Cluster, options: Options) -> None:
    hmac, period = _hmac(options), _period(options, "expiry-time-period")
    print(f"Calling expire token operation with hmac :{hmac} , expire-time-period :{period}", flush=True)
    expires_ms = TokenAdmin(cluster).expire_delegation_token(_decode_hmac(hmac), period_ms=period)
    print(f"Completed expire operation. New expiry date : {_date(expires_ms)}", end="")


def _describe_tokens(cluster: Cluster, options: Options) -> None:
    owners = _principals(options, "owner-principal")
    place = f"owners: {_listed(owners)}" if owners else "current user."
    print(f"Calling describe token operation for {place}", flush=True)
    # Without owners all tokens, as the help says; Kafka's tool since 3.9 asks for those of no owner, and gets none.
    tokens = TokenAdmin(cluster).describe_delegation_tokens(owners or None)
    print(f"Total number of tokens : {len(tokens)}", end="")
    _print_tokens(tokens)


def _principals(options: Options, name: str) -> list[str]:
    found = [each.strip() for each in options.values_of(name)]
    for each in found:
        if ":" not in each:
            raise ToolError(f"expected a string in format principalType:principalName but got {each}", _ILLEGAL)
    return found


def _period(options: Options, name: str) -> int:
    if not options.values_of(name):
        raise ToolError(f"Option {name} needs a number of milliseconds, or -1", "java.lang.NullPointerException")
    return options.number_of(name, -1)


def _hmac(options: Options) -> str:
    text = options.value_of("hmac")
    if not text:
        raise ToolError("Option hmac needs the HMAC of a token", "java.lang.NullPointerException")
    return text


def _decode_hmac(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolError(f"The HMAC is not base64: {error}", _ILLEGAL) from None


def _listed(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"


def _date(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000).astimezone():%Y-%m-%dT%H:%M}"


def _print_tokens(tokens: Iterable[DelegationToken]) -> None:
    _print_row(_COLUMNS)
    for token in tokens:
        dates = (_date(each) for each in (token.issued_ms, token.expires_ms, token.max_ms))
        _print_row((token.token_id, token.password, token.owner, token.requester, _listed(token.renewers), *dates))


def _print_row(cells: Sequence[str]) -> None:
    # As in Kafka's tool, an empty line comes before each row.
    print("\n" + " ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)))


_RUNS: Final = {
    "create": _create_token,
    "renew": _renew_token,
    "expire": _expire_token,
    "describe": _describe_tokens,
}


def _maybe(name: str, text: str) -> Option:
    return Option(name, Takes.MAYBE, text)


TOOL: Final = Tool(
    "This tool helps to create, renew, expire, or describe delegation tokens.",
    (
        *SERVER,
        value("command-config", "REQUIRED: A property file with the login: tokens exist for connections with a login."),
        flag("create", "Create a new delegation token. Use --renewer-principal to name its renewers."),
        flag("renew", "Renew a delegation token. Use --renew-time-period to set the time until it expires."),
        flag("expire", "Expire a delegation token. Use --expiry-time-period to set when."),
        flag("describe", "Describe the tokens that the user may see, or of them those of --owner-principal."),
        _maybe("owner-principal", "The owner of the token, as principalType:name."),
        _maybe("renewer-principal", "A renewer of the token, as principalType:name. May repeat."),
        _maybe(_PERIODS[0], "Longest life of the token in milliseconds; -1: delegation.token.max.lifetime.ms."),
        _maybe(_PERIODS[1], "Time until it expires in milliseconds; -1: delegation.token.expiry.time.ms."),
        _maybe(_PERIODS[2], "Time until it expires in milliseconds; -1: at once."),
        _maybe("hmac", "HMAC of the delegation token."),
    ),
    run_delegation_tokens,
    wrap_refusals=True,
    parse=_parse_words,
)
