"""Settings of groups, client metrics and loggers over the wire.

Zone: real.
"""

from __future__ import annotations

import logging

import pytest

from ottla.cluster.configs import ConfigSource, Resource
from ottla.errors import ErrorCode
from ottla.wire.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

GROUP, METRICS, LOGGER = Resource.GROUP, Resource.CLIENT_METRICS, Resource.BROKER_LOGGER
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(node, kind: int, name: str, *keys: str):
    """(error, {key: (value, source)})."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name=name)
    resource.configuration_keys = list(keys) or None
    (result,) = node.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    return result.error_code, {each.name: (each.value, each.config_source) for each in result.configs}


def alter(node, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False):
    """(error, text)."""
    config = IncrementalAlterConfigsRequest.AlterableConfig
    configs = [config(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = node.ask(request, 1).responses
    return response.error_code, response.error_message


def listed(node, *kinds: int) -> list[tuple[int, str]]:
    response = node.ask(ListConfigResourcesRequest(resource_types=list(kinds)), 1)
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


def test_what_has_no_settings_has_the_defaults(node):
    error, found = describe(node, METRICS, "none")
    default = ConfigSource.DEFAULT_CONFIG
    assert (error, found) == (0, {"interval.ms": ("300000", default), "match": ("", default), "metrics": ("", default)})
    error, found = describe(node, GROUP, "g", "consumer.session.timeout.ms", "nonsense")
    assert (error, found) == (0, {"consumer.session.timeout.ms": ("45000", default)})
    assert listed(node, METRICS, GROUP) == []


@pytest.mark.parametrize(
    ("kind", "key", "value", "source"),
    [(METRICS, "interval.ms", "1000", 7), (GROUP, "consumer.session.timeout.ms", "50000", 8)],
)
def test_settings_are_stored_shown_listed_and_deleted(node, kind, key, value, source):
    assert alter(node, kind, "a/ä <default>", (key, SET, value))[0] == 0
    assert describe(node, kind, "a/ä <default>", key) == (0, {key: (value, source)})
    assert listed(node, kind) == [(kind, "a/ä <default>")]
    node.restart()
    assert describe(node, kind, "a/ä <default>", key) == (0, {key: (value, source)})
    assert alter(node, kind, "a/ä <default>", (key, DELETE, None))[0] == 0
    assert listed(node, kind) == []
    assert describe(node, kind, "a/ä <default>", key)[1][key][1] == ConfigSource.DEFAULT_CONFIG


def test_lists_are_changed_word_by_word(node):
    alter(node, METRICS, "m", ("metrics", SET, "a,b"))
    alter(node, METRICS, "m", ("metrics", APPEND, "c"))
    alter(node, METRICS, "m", ("metrics", SUBTRACT, "a"))
    assert describe(node, METRICS, "m", "metrics")[1]["metrics"][0] == "b,c"


def test_the_older_request_replaces_all(node):
    alter(node, METRICS, "m", ("metrics", SET, "a"), ("interval.ms", SET, "200"))
    config = AlterConfigsRequest.AlterableConfig(name="interval.ms", value="300")
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=METRICS, resource_name="m", configs=[config])
    assert node.ask(AlterConfigsRequest(resources=[resource]), 2).responses[0].error_code == 0
    found = describe(node, METRICS, "m")[1]
    assert found["interval.ms"][0] == "300"
    assert found["metrics"][0] == ""


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code"),
    [
        (METRICS, "m", "interval.ms", "99", ErrorCode.INVALID_REQUEST),
        (METRICS, "m", "interval.ms", "3600001", ErrorCode.INVALID_REQUEST),
        (METRICS, "m", "interval.ms", "x", ErrorCode.INVALID_REQUEST),
        (METRICS, "m", "match", "client_id=[", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "match", "shoe_size=4", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "match", "client_id", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "nonsense", "1", ErrorCode.INVALID_REQUEST),
        (METRICS, "", "interval.ms", "1000", ErrorCode.INVALID_REQUEST),
        (METRICS, "..", "interval.ms", "1000", ErrorCode.INVALID_REQUEST),
        (METRICS, "m" * 2000, "interval.ms", "1000", ErrorCode.INVALID_REQUEST),
        (GROUP, "g", "consumer.session.timeout.ms", "0", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "nonsense", "1", ErrorCode.INVALID_CONFIG),
        (GROUP, "", "consumer.session.timeout.ms", "1", ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_settings_that_are_refused(node, kind, name, key, value, code, validate_only):
    assert alter(node, kind, name, (key, SET, value), validate_only=validate_only)[0] == code
    assert listed(node, METRICS, GROUP) == []


def test_an_impossible_name_has_no_settings(node):
    assert describe(node, METRICS, "")[0] == ErrorCode.INVALID_REQUEST
    assert describe(node, GROUP, "")[0] == ErrorCode.INVALID_REQUEST


@pytest.fixture
def logger():
    """A logger of this program, and its level afterwards."""
    found = logging.getLogger("ottla.test.of.levels")
    above = [logging.getLogger(), logging.getLogger("ottla")]
    levels = [each.level for each in above]
    above[1].setLevel(logging.NOTSET)
    yield found
    found.setLevel(logging.NOTSET)
    for each, level in zip(above, levels, strict=True):
        each.setLevel(level)


def test_levels_of_loggers(node, logger):
    assert alter(node, LOGGER, "1", (logger.name, SET, "TRACE"))[0] == 0
    assert logger.level == 5
    assert describe(node, LOGGER, "1", logger.name) == (0, {logger.name: ("TRACE", 6)})
    assert alter(node, LOGGER, "1", (logger.name, DELETE, None))[0] == 0
    assert logger.level == logging.NOTSET
    assert alter(node, LOGGER, "1", ("root", SET, "ERROR"))[0] == 0
    _, all_of_them = describe(node, LOGGER, "1")
    assert all_of_them["root"] == all_of_them[logger.name] == ("ERROR", 6)
    assert all(name == "root" or name.startswith("ottla") for name in all_of_them)
    assert (LOGGER, "1") in listed(node)


@pytest.mark.parametrize(
    ("name", "key", "operation", "value", "code"),
    [
        ("1", "root", DELETE, None, ErrorCode.INVALID_REQUEST),
        ("1", "ottla.test.of.levels", SET, "LOUD", ErrorCode.INVALID_CONFIG),
        ("1", "ottla.test.of.levels", SET, "debug", ErrorCode.INVALID_CONFIG),
        ("1", "ottla.test.of.levels", SET, None, ErrorCode.INVALID_CONFIG),
        ("1", "ottla.test.of.levels", APPEND, "DEBUG", ErrorCode.INVALID_REQUEST),
        ("1", "ottla.no.such.logger", SET, "DEBUG", ErrorCode.INVALID_CONFIG),
        ("1", "asyncio", SET, "DEBUG", ErrorCode.INVALID_CONFIG),
        ("2", "root", SET, "DEBUG", ErrorCode.INVALID_REQUEST),
        ("", "root", SET, "DEBUG", ErrorCode.INVALID_REQUEST),
    ],
)
def test_levels_that_are_refused(node, logger, name, key, operation, value, code):
    before = logging.getLogger().level
    changes = (
        [(logger.name, SET, "DEBUG"), (key, operation, value)] if key != logger.name else [(key, operation, value)]
    )
    assert alter(node, LOGGER, name, *changes)[0] == code
    assert logger.level == logging.NOTSET, "all of a request's levels, or none"
    assert logging.getLogger().level == before
