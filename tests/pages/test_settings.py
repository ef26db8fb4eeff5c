"""The bounds in the security guide are the defaults of the gateway's configuration."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from aegaeon_gateway.config import GatewayConfig, HttpLimits

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "security.md"
KEYS = {
    field.name: field.default
    for settings in (GatewayConfig, HttpLimits)
    for field in dataclasses.fields(settings)
    if isinstance(field.default, (int, float))
    and not isinstance(field.default, bool)
    and field.name != "max_body_bytes"  # pools and `aegaeon up` start their gateways with another
}


def written(key: str, value: float) -> str:
    """As the guide has it."""
    if "bytes" not in key:
        return "an hour" if value == 3600 else f"{value:g} s" if key.endswith("_s") else f"{value:g}"
    unit, shift = next((unit, shift) for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)) if value >= 1 << shift)
    return f"{int(value) >> shift} {unit}"


def test_each_bound_with_a_key_is_the_keys_default() -> None:
    table = GUIDE.read_text("utf-8").partition("## Bounds of a gateway")[2].partition("\n\n**")[0]
    checked = set()
    for line in table.splitlines():
        if not line.startswith("| "):
            continue
        _, _, value, keys, _ = re.split(r"(?<!\\)\|", line)
        for key in set(re.findall(r"`(\w+)`", keys)) & set(KEYS):
            assert re.search(rf"\b{written(key, KEYS[key])}\b", value), (key, KEYS[key], value)
            checked.add(key)
    assert len(checked) >= 19, sorted(set(KEYS) - checked)
