"""The metadata store over ZooKeeper's protocol: as a client of an outside ensemble, and as the embedded server.

Zone: real.
"""
