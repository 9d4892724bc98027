"""Where everything meets: the broker object, dispatch, remaining handlers.

Zone: deterministic.
"""
