"""The log on disk: index, segment, log, recovery, retention; knows no replicas.

Zone: deterministic.
"""
