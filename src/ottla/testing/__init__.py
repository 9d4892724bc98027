"""Helpers for the tests of users' programs.

Zone: real. `spark` runs queries and pipelines on an embedded broker; `fixtures` has the same as fixtures of pytest.
"""
