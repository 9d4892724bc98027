"""Authorization: may this principal do that, from there?

Zone: deterministic. `acl_index` finds the ACLs of a resource, `authorizer` decides, `decision_cache` keeps the
decisions of a connection. Handlers pass a resource and an operation; the principal and the host belong to the
connection.
"""
