"""Access to the metadata store: the layout of the nodes, multi-step workflows, watches, error codes.

Zone: deterministic.
"""
