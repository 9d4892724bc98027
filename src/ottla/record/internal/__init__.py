"""The records of the internal topics: declarations of keys and values, and how a record finds its own.

Zone: pure. Layout only; what a record means belongs to the coordinators.

    groups              __consumer_offsets
    transactions        __transaction_state
    consumer_protocol   what members of classic consumer groups embed in them
    parsing             key and value bytes → messages
"""
