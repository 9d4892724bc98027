"""Encodes and decodes Kafka's messages, for every API and version.

Zone: pure.

`schema` defines how a message is declared, `messages` has the declarations (one class per message, with all versions),
`codec` compiles a declaration and a version to straight-line code, `header` and `apis` handle the frame around it, and
`hot` has hand-written codecs for Produce and Fetch. Nothing here depends on the meaning of a message.
"""
