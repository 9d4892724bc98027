"""The laws of Workers, for every implementation.

Zone: real. Behaviour of one implementation alone is tested beside it.
"""

from __future__ import annotations

import pytest

from ottla.seams import Failure

pytestmark = pytest.mark.slow


def run(rig, done, job, *arguments):
    done.inside += 1
    rig.workers.run_job(job, arguments, done)
    done.inside -= 1


def test_a_job_comes_back_with_its_result(rig, outcomes):
    done = outcomes()
    run(rig, done, "zlib:crc32", b"123456789")
    rig.until(lambda: len(done) == 1)
    assert done == [0xCBF43926]


def test_many_jobs_all_come_back_once(rig, outcomes):
    done = outcomes()
    for n in range(5):
        run(rig, done, "operator:add", n, 100)
    rig.until(lambda: len(done) == 5)
    rig.run(5)
    assert sorted(done) == [100, 101, 102, 103, 104]


def test_a_job_that_raises_is_a_failure_and_the_next_one_runs(rig, outcomes):
    done = outcomes()
    run(rig, done, "operator:truediv", 1, 0)
    rig.until(lambda: len(done) == 1)
    assert isinstance(done[0], Failure)
    assert "ZeroDivisionError" in done[0].message
    run(rig, done, "missing_package.module:function")
    run(rig, done, "operator:add", 1, 1)
    rig.until(lambda: len(done) == 3)
    failures = [outcome for outcome in done if isinstance(outcome, Failure)]
    assert len(failures) == 2
    assert 2 in done
