"""A schema registry: the REST interface of Confluent's Schema Registry 7, kept in the topic `_schemas`.

Zone: real. Works against any Kafka cluster, through `ottla.client`.
"""
