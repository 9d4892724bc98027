"""The formats that brokers store or exchange, and samples of them that this release and an earlier one write and read.

Zone: real.
"""
