"""Every late arrival of a transaction's requests, within a bound, with failovers of their coordinators.

Zone: deterministic. No randomness and no disk faults: an exhaustive search over all schedules (docs/simulator.md).

    choices     one path through the tree of schedules, and the next one
    network     a network that keeps requests
    broker_parts    coordinators, verifier and replicas, built as a broker's
    partitions  the three partitions, their followers and leaders
    harness     all of that on one simulated machine
    client      a transactional producer, of transaction version 1 or 2, and its book of outcomes
    schedule    one schedule: requests held back, failovers, late arrivals
    checker     properties of the logs and of the book
    digest      the whole state as a few bytes, to recognize equal states
    search      all schedules within bounds, and their sums
    swarm       one search over several processes
"""
