"""Commands that run PySpark pipelines.

Zone: real.
"""
