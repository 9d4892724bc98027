"""Commands that run the broker in a simulated world.

Zone: real.
"""
