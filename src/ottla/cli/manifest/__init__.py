"""A cluster as one file: read it, compare it with a cluster, change the cluster.

Zone: real. The commands are in `ottla.cli.commands.cluster.manifest`.
"""
