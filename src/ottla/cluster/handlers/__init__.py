"""The request handlers of `ottla.cluster`.

Zone: deterministic.
"""
