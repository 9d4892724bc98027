"""Definitions of pipelines: records of a compacted topic that a service of pipelines follows.

Zone: real. `definition` is the form of a record, `definitions_topic` reads and writes the topic, `follower` keeps a
service as the definitions are.
"""
