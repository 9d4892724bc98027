"""Bytes to messages and back, for every API and version.

Zone: pure.

`schema` says how a message is declared, `messages` holds the declarations (one class per message, all versions in
it), `codec` turns a declaration and a version into straight-line code, `header` and `apis` are the frame around it,
`hot` is the hand-written pair for Produce and Fetch. Nothing here knows what a message means.
"""
