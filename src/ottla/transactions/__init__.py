"""The transaction coordinator: the producer of each transactional id, and the end of transactions in all partitions.

Zone: deterministic. One state machine per partition of `__transaction_state`, run by `ottla.coordinator`.

    state        a transactional id and its transitions
    rules        the transition that a request causes, or the error that refuses it
    commands     the commands of the state machine
    codec        entries ↔ records of the topic
    machine      the state machine: handle, apply, time-outs
    markers      the queue of markers to write, by broker
    messages     requests and responses of the protocol ↔ commands and results
    service      the state machines of this broker, producer ids and markers
"""
