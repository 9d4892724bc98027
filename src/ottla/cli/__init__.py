"""The command line: prints and shows only, works against any Kafka cluster.

Zone: real.
"""
