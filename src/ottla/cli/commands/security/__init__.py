"""Commands about who may do what, and how much of it.

Zone: real. Each module has one command.
"""
