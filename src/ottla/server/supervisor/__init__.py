"""Several brokers on one machine: the supervisor, its fork server, and the status report.

Zone: real.
"""
