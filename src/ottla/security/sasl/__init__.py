"""SASL, the accepting side: mechanisms as exchanges of tokens, and the state of a connection's login.

Zone: deterministic. Nothing here reads a clock or random bytes: the time and the nonce are arguments. `session` has the
states of a connection, `plain`, `scram` and `oauthbearer` are the mechanisms. `ottla.client.security` is the other
side. Kerberos is not supported.
"""
