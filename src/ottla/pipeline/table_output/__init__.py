"""Steps of a pipeline that write a table instead of a topic.

Zone: real.
"""
