"""Runs librdkafka's own test programs against three brokers of Ottla or of Apache Kafka.

Zone: real.
"""
