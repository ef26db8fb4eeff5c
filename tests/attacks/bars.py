"""What must hold under attack. docs/guides/security.md states these."""

from __future__ import annotations

GATEWAY_BYTES = 1792 << 20
"""PSS of a gateway and its children under all attacks: itself, two workers' memory, bodies and prompts under way"""
PICKER_BYTES = 256 << 20
"""PSS of an endpoint picker"""
CALLBACK_S = 0.050
"""longest callback on a gateway's event loop, CPU time of its thread"""
TBT_RATIO = 2.0
"""p99 of the innocent tenant's time between tokens, against a quiet time in the same run"""
TBT_FLOOR_S = 0.050
"""a p99 below is as good as this: a quarter of the models' objective, which a busy machine alone may take"""
STALL_S = 1.0
"""an innocent stream that stalls for longer was harmed, whatever the p99"""
