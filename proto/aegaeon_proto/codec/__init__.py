"""Translates between messages and the vocabulary (`aegaeon_proto.engine`), in both directions: the one codec.

Pure functions. Nothing is validated but enumerations that a report cannot do without: the module that acts on it does
the rest. Any other enumeration value that this version does not define becomes its default.
"""
