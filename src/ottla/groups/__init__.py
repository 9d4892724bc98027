"""Consumer groups: members, committed offsets, and the responses of a group's coordinator.

Zone: deterministic.

    group, deadlines, offsets          the state, and queries of it (pure)
    joining, membership, rebalancing   decisions about members (pure)
    commits, expiration                decisions about offsets (pure)
    commands, records                  requests to a shard; entries of the journal
    shard                              the state machine of one partition of `__consumer_offsets`
    groups                             the shards of this broker
    handlers, heartbeats               requests to commands, results to responses
"""
