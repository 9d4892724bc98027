"""librdkafka's own test programs, run against three brokers of Ottla or of Apache Kafka.

Zone: real.
"""
