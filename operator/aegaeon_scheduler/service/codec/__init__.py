"""Between the wire and the core: reports become events, commands become messages.

Pure functions. What the core must not see (token ids, handles, addresses) stays behind or is added by the driver.
Ids on the wire are the core's plus a base that differs from one life of the scheduler to the next, so that a report
about a command of an earlier life can never be taken for one about a command of this life.
"""
