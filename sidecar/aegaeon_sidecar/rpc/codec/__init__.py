"""Between the wire and the domain: messages become commands, reports and tokens become messages.

Pure functions, and the only ones that know protobuf. What a command asks for is judged by who carries it out; here an
enumeration's value that this version does not know counts as its default.
"""
