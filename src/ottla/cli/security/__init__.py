"""What the commands about users, ACLs, tokens and certificates share.

Zone: real. The commands are in `ottla.cli.commands.security`.
"""
