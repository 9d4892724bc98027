"""Every late arrival of a transaction's requests, within a bound, with failovers of their coordinators.

Zone: deterministic. No chance and no faults of disks: a search that runs every schedule there is (docs/simulator.md).

    choices     one path through the tree of what can happen, and the next one
    stage       partitions, coordinators and leaders as a broker wires them; a network that keeps what is sent
    client      a transactional producer, of transaction version 1 or 2, and its book of what it was told
    play        one schedule: what is held back, what fails over, what arrives late
    checker     what must hold of the logs and of the book
    search      all schedules, and what they add up to
"""
