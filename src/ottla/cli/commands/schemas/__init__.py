"""`ottla schema`.

Zone: real. `schema` has subjects and versions, `settings` the groups below it, `options` what both take.
"""
