"""The sink: tasks that write rows to topics, exactly once or at least once.

Zone: real.
"""
