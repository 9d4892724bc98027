"""The keys of the authorizer.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.broker_authorizer import AUTHORIZERS
from ottla.config.rows import ConfigError


def test_without_keys_there_is_no_authorizer() -> None:
    config = BrokerConfig()
    assert (config.authorizer_class_name, config.super_users) == ("", "")
    assert config.allow_everyone_if_no_acl_found is False


@pytest.mark.parametrize("name", ["", *AUTHORIZERS])
def test_the_names_of_kafkas_authorizers_are_accepted(name: str) -> None:
    config, warnings = BrokerConfig.from_properties({"authorizer.class.name": name})
    assert config.authorizer_class_name == name
    assert warnings == []


@pytest.mark.parametrize("name", ["com.example.MyAuthorizer", "AclAuthorizer", "kafka.security.auth.SimpleAuthorizer"])
def test_another_authorizer_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BrokerConfig.from_properties({"authorizer.class.name": name})
