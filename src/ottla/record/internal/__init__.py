"""The records of the internal topics: declarations of keys and values, and their decoding.

Zone: pure. Layout only; the coordinators know what a record means.

    groups              __consumer_offsets
    transactions        __transaction_state
    consumer_protocol   what members of classic consumer groups embed in them
    parsing             key and value bytes → messages
"""
