"""The real shell: sockets, disk, workers, clock. Holds no broker state.

Zone: real.
"""
