"""The scheduler as a pure state machine: `Scheduler.on(now, event) -> commands`.

Standard library only: no clock, socket, thread or tensor below this line, so that production, the simulator and the
property tests all run this very object.
"""
