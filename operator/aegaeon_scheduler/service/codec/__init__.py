"""Between the wire and the core: reports become events, commands become messages.

Pure functions. What the core must not see (token ids, handles, addresses) stays behind or is added by the driver.
Ids on the wire are the core's plus a base that rises from stream to stream, also over a restart of the scheduler: a
report about a command of an earlier stream can never be taken for one about a command of this one.
"""
