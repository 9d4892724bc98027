"""The command line. It works against any Kafka cluster; the work itself is done by the packages that it calls.

Zone: real.
"""
