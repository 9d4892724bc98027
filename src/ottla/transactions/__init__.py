"""The transaction coordinator: who writes under a transactional id, and how a transaction ends in all its partitions.

Zone: deterministic. One machine per partition of `__transaction_state`, behind the runtime of `ottla.coordinator`.

    state        a transactional id and its transitions
    rules        what a request makes of it, or why it is refused
    commands     what is asked of the machine
    codec        entries ↔ records of the topic
    machine      the machine: handle, apply, time
    markers      which markers are still to be written, by broker
    messages     requests and responses of the protocol ↔ commands and answers
    service      the machines behind the runtime, producer ids and markers
"""
