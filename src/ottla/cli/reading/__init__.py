"""Reading records for `ottla consume`: by group, by range, with filters.

Zone: real.
"""
