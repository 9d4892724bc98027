"""Several brokers on one machine: the supervisor, its fork server, and their status.

Zone: real.
"""
