"""Work with the metadata store: where the nodes are, multi-step workflows, watches, error codes.

Zone: deterministic.
"""
