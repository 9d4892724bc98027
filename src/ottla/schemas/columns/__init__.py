"""Avro payloads as Arrow columns: a schema becomes a program, which numba's loops run over the bytes of many records.

Zone: pure. Needs numpy, numba and pyarrow (the extra `spark`).
"""
