"""Translates between messages and the domain: decodes commands, encodes reports and tokens.

Pure functions, and the only ones that import protobuf. The codec does not validate commands: the module that executes
one does. An enumeration value that this version does not define becomes its default.
"""
