"""The event loop: clock, selector, the order of completions, worker processes.

Zone: real.
"""
