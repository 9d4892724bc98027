"""Who the other end is, and who we are: TLS and SASL of the clients.

Zone: real. Wrapping of sockets and the exchanges that open a session live here, under settings, jaas and scram, which
are pure; what is sent on the connection afterwards does not.
"""
