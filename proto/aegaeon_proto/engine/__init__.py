"""The vocabulary of schedulers and engines: what the messages of v1/engine.proto say, as plain data.

Standard library alone, so that the scheduler's core and the simulator use it too; `aegaeon_proto.codec` translates.
"""
