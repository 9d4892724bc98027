"""`ottla demo`: the broker, real events and PySpark in one command.

Zone: real.
"""
