"""The commands: a module per command, with a click command of the same name.

Zone: real.
"""
