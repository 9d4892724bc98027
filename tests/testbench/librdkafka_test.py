"""What librdkafka's test runner prints and reports becomes one outcome for each test, and a table."""

from __future__ import annotations

import json

import pytest
from testbench.librdkafka.table import (
    REASON_LIMIT,
    Outcome,
    choose_tests,
    expected_of,
    find_reasons,
    format_row,
    format_totals,
    judge_part,
    judge_run,
    list_tests,
    parse_report,
    to_json,
)

SOURCE = """
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          _THRES(.ucpu = 100.0, .scpu = 20.0, .rss = 900.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0028_long_topicnames,
          TEST_F_KNOWN_ISSUE,
          TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0031_get_offsets, 0),
    _TEST(0031_get_offsets_mock, TEST_F_LOCAL),
    _TEST(0045_subscribe_update, 0, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0045_subscribe_update_topic_remove,
          0,
          .scenario = "noautocreate"),
    _TEST(0045_subscribe_many_updates, 0, TEST_BRKVER(0, 10, 2, 0)),
#if WITH_SOCKEM
    _TEST(0088_produce_metadata_timeout, TEST_F_SOCKEM),
#endif
    _TEST(8000_idle, TEST_F_MANUAL),
"""
PRINTED = (
    "\x1b[36m[0052_msg_timestamps         /  0.000s] TEST FAILURE\n"
    '\x1b[0m\x1b[31m### Test "0052_msg_timestamps (part:12: x)" failed at test.c:5257:make() at Wed Nov 25 2026: ###\n'
    "part:12: make():5257: the first reason\n"
    '\x1b[0m\x1b[31m### Test "0052_msg_timestamps" failed at test.c:1:main() at Wed Nov 25 2026: ###\n'
    "a later one\n"
    "\x1b[0m\x1b[36m[0097_ssl_verify             /  0.200s] \x1b[33mWARN: SKIPPING TEST: no certificates\n"
)


def report(*rows: tuple[str, str, float]) -> str:
    """As the runner writes it."""
    return json.dumps({"tests": {name: {"name": name, "state": state, "duration": took} for name, state, took in rows}})


def test_the_list_holds_what_a_plain_cluster_is_enough_for() -> None:
    assert list_tests(SOURCE) == [
        "0001_multiobj",
        "0031_get_offsets",
        "0045_subscribe_update",
        "0045_subscribe_many_updates",
        "0088_produce_metadata_timeout",
    ]


def test_tests_are_chosen_by_number() -> None:
    tests = list_tests(SOURCE)
    assert choose_tests(tests, "0088, 0045") == {
        "0088": ["0088_produce_metadata_timeout"],
        "0045": ["0045_subscribe_update", "0045_subscribe_many_updates"],
    }
    assert list(choose_tests(tests, None)) == ["0001", "0031", "0045", "0088"]


@pytest.mark.parametrize("wanted", ["0000", "8000", "0028", "0001,4711", "0001_multiobj"])
def test_a_number_without_such_a_test_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted.rpartition(",")[2]):
        choose_tests(list_tests(SOURCE), wanted)


def test_the_report_tells_state_and_time() -> None:
    rows = parse_report(report(("0001_multiobj", "PASSED", 1.8), ("0031_get_offsets", "RUNNING", 60), ("x", "DNS", 0)))
    assert rows == {"0001_multiobj": ("passed", 1.8), "0031_get_offsets": ("failed", 60.0), "x": ("skipped", 0.0)}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"tests": []}', '{"tests": {"a": {"name": "a"}}}', '{"tests": {"a": 1}}']
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_report(text)


def test_reasons_are_what_was_printed_first() -> None:
    assert find_reasons(PRINTED) == {
        "0052_msg_timestamps": "part:12: make():5257: the first reason",
        "0097_ssl_verify": "no certificates",
    }


def test_a_run_has_one_outcome_for_each_test() -> None:
    written = report(
        ("0052_msg_timestamps", "FAILED", 2), ("0097_ssl_verify", "SKIPPED", 0), ("0001_multiobj", "PASSED", 3)
    )
    names = ["0001_multiobj", "0052_msg_timestamps", "0097_ssl_verify"]
    assert judge_run(names, written, PRINTED, "the runner ended by SIGABRT", 9) == [
        Outcome("0001_multiobj", "passed", 3),
        Outcome("0052_msg_timestamps", "failed", 2, "part:12: make():5257: the first reason"),
        Outcome("0097_ssl_verify", "skipped", 0, "no certificates"),
    ]


@pytest.mark.parametrize("written", ["", report(("0002_unkpart", "PASSED", 1.0))])
def test_without_a_row_in_the_report_a_test_has_failed(written: str) -> None:
    assert judge_run(["0001_multiobj"], written, "", "it was killed after 300 s", 300) == [
        Outcome("0001_multiobj", "failed", 300, "it was killed after 300 s")
    ]


def test_a_bad_ending_fails_a_test_that_passed() -> None:
    written = report(("0001_multiobj", "PASSED", 1.0))
    assert judge_run(["0001_multiobj"], written, "", "the runner ended by SIGSEGV", 2) == [
        Outcome("0001_multiobj", "failed", 1.0, "the runner ended by SIGSEGV")
    ]


def test_a_test_of_which_nothing_ran_has_not_passed() -> None:
    written = report(("0045_subscribe_update", "PASSED", 0.0))
    [outcome] = judge_run(["0045_subscribe_update"], written, "", None, 0.2)
    assert (outcome.state, outcome.reason) == ("skipped", "quick mode leaves out all of its parts")


def test_a_part_has_a_name_of_its_own_and_must_have_run() -> None:
    passed = Outcome("0081_admin", "passed", 2)
    assert judge_part(passed, "do_test_A", "[ do_test_A:12: x ]") == Outcome("0081_admin/do_test_A", "passed", 2)
    assert judge_part(passed, "do_test_A", "[ do_test_AB:12 ]").state == "skipped"
    failed = Outcome("0081_admin", "failed", 2, "x")
    assert judge_part(failed, "do_test_A", "") == Outcome("0081_admin/do_test_A", "failed", 2, "x")


def test_only_unexpected_failures_are_complaints() -> None:
    expected = {"0002_b": "because"}
    good, known, bad = (
        Outcome("0001_a", "passed", 1),
        Outcome("0002_b", "failed", 2, "x"),
        Outcome("0003_c", "failed", 3, "y"),
    )
    outcomes = [good, known, bad, Outcome("0004_d", "skipped", 0, "z")]
    assert [expected_of(each, expected) for each in outcomes] == [True, True, False, True]
    assert format_totals(outcomes, expected) == "1 passed, 2 failed (1 of them unexpectedly), 1 skipped in 6 s"
    told = to_json(outcomes, expected)
    assert (told["passed"], told["failed"], told["skipped"], told["unexpected"]) == (1, 2, 1, ["0003_c"])
    assert told["tests"][1] == {
        "name": "0002_b",
        "state": "failed",
        "seconds": 2,
        "reason": "x",
        "expected_failure": "because",
    }


def test_a_row_tells_the_reason_that_matters() -> None:
    expected = {"0002_b": "because"}
    assert format_row(Outcome("0001_a", "passed", 1), expected).split() == ["0001_a", "passed", "1.0"]
    assert format_row(Outcome("0002_b", "failed", 1, "x"), expected).endswith("failed, as expected       1.0  because")
    assert "take it from the list" in format_row(Outcome("0002_b", "passed", 1), expected)
    long = format_row(Outcome("0003_c", "failed", 1, "y" * 1_000), expected)
    assert long.endswith("y" * (REASON_LIMIT - 1) + "…")
