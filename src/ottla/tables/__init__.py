"""A topic as a table: Iceberg, Delta or Parquet, each record in it exactly once.

Zone: real. Needs the extra `tables`. The table itself contains the offsets up to which it has the topic, written in the
same commit as the rows.
"""
