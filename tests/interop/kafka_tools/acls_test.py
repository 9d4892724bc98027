"""kafka-acls beside Apache Kafka's own. Its sets have no order, so lines are compared without theirs."""

from __future__ import annotations

import pytest
from tests.interop.kafka_tools.comparison import Comparison

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]


def test_acls(both: Comparison) -> None:
    add = "BS --add --allow-principal User:{name}"
    both.compare(
        "kafka-acls",
        f"""
        {add} --operation Read --topic {{name}}1
        {add} --operation Read --topic {{name}}1
        {add} --allow-principal User:Al --allow-host 10.0.0.1 --operation Read --operation Write --topic {{name}}2
        BS --list --topic {{name}}1
        BS --list --topic {{name}}nothing
        BS --list --principal User:{{name}}
        BS --list --principal User:{{name}} --principal User:Al --topic {{name}}2
        {add} --producer --topic {{name}}3 --transactional-id {{name}}x --idempotent
        {add} --consumer --topic {{name}}4 --group {{name}}g
        {add} --topic {{name}} --resource-pattern-type prefixed
        {add} --cluster --operation Create
        {add} --deny-principal User:Y --deny-host 1.2.3.4 --topic {{name}}5
        {add} --user-principal User:{{name}} --operation CreateTokens
        {add} --delegation-token {{name}} --operation Describe
        {add} --topic {{name}}6 --topic {{name}}7 --group {{name}}g --operation Read
        BS --list --topic {{name}}3 --resource-pattern-type match
        BS --list --group {{name}}g
        BS --remove --force --topic {{name}}1
        BS --remove --force --allow-principal User:Al --operation Read --topic {{name}}2 --allow-host 10.0.0.1
        BS --remove --force --allow-principal User:Nobody --operation Read --topic {{name}}2
        BS --remove --force --producer --allow-principal User:{{name}} --topic {{name}}3
        BS --list --principal User:{{name}}
        BS --remove --force --topic {{name}} --resource-pattern-type prefixed
        BS --list --topic {{name}}3 --resource-pattern-type any
        """,
        ordered=False,
    )


def test_wrong_words_of_acls(both: Comparison) -> None:
    both.compare(
        "kafka-acls",
        """
        BS
        --list
        BS --nonsense
        BS --add --topic t
        BS --add --allow-principal User:A
        BS --add --allow-principal Bob --topic t
        BS --add --allow-principal User:A --topic t --operation nonsense
        BS --add --allow-principal User:A --topic t --resource-pattern-type any
        BS --add --allow-principal User:A --topic t --resource-pattern-type 1
        BS --list --resource-pattern-type 1
        BS --add --allow-principal User:A --topic t --principal User:A
        BS --remove --force --topic t --principal User:A
        BS --add --allow-principal User:A --cluster --operation Read
        BS --add --allow-principal User:A --consumer --topic t
        BS --add --allow-principal User:A --producer --group t
        BS --add --deny-principal User:A --producer --topic t
        BS --remove --force
        """,
    )
