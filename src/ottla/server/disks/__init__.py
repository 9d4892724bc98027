"""Log directories and files of this machine: the real seams `Disk` and `File`.

Zone: real.
"""
