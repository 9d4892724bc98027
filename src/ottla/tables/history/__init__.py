"""What a table has of a topic, for readers: its files, and the offsets after them, of one moment.

Zone: real.
"""
