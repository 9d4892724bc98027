"""Consumer groups: who is a member, what is committed, and what the coordinator of a group answers.

Zone: deterministic.

    group, calendar, offsets   the state, and questions about it (pure)
    joining, rebalancing, commits, upkeep   decisions about it (pure)
    commands, records          what is asked, what is journaled
    shard                      all of it as a machine of the coordinator runtime
    handlers                   requests to commands, results to responses
"""
