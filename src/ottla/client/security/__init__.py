"""TLS and SASL of the clients.

Zone: real. Wraps sockets and performs the exchanges that open a session; `settings`, `jaas` and `scram` are pure.
"""
