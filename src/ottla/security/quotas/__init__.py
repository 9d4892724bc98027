"""Quotas: how much a user, a client id or an address may do.

Zone: deterministic. `rates` measures, `client_quotas` finds the limit of a client, `throttling` combines them. The time
is an argument: milliseconds of the monotonic clock.
"""
