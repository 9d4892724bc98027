"""The PySpark data source and sink `format("ottla")`, an ordinary Kafka client, and the Java they run on.

Zone: real. Exports only what users' scripts import.
"""

from __future__ import annotations

from ottla.spark.environment import activate_session
from ottla.spark.foreach_batch import write_batch
from ottla.spark.java import NoJava, java_home
from ottla.spark.metrics import offsets_behind_latest

__all__ = ["NoJava", "activate_session", "java_home", "offsets_behind_latest", "write_batch"]
