"""Compares what the policy keeps from one event to the next with what it would compute from scratch."""

from __future__ import annotations

from aegaeon_scheduler.core.policies.slack.group import Load
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.policies.slack.view import View
from aegaeon_scheduler.core.pool import Pool


def disagreements(pool: Pool, table: Table, now: float) -> list[str]:
    """Lists the differences; nothing where all is well."""
    differences = []
    several = set(table.several())
    for group in table.groups.values():
        if not group.agrees(now):
            differences.append(f"group {group.number} of {group.model.name} keeps another size or deadline than it has")
        if (group.number in table.waiting) is not (group.inst is None):
            differences.append(
                f"group {group.number} of {group.model.name} is not where the list of those that wait says"
            )
        if (group in several) is not (group.inst is None and len(table.of(group.model)) > 1):
            differences.append(f"group {group.number} of {group.model.name} is not listed by what else its model has")
        strange = (seq.id for seq in group.members.values() if seq.batch is not group)
        differences.extend(f"{seq} would not tell its group of a change" for seq in strange)
    if not table.urgent.agrees(now) or table.urgent.count != len(table.waiting):
        differences.append("a look at all that wait finds another one with little slack than is kept")
    for inst in pool.instances.values():
        view = table.row(inst)
        if not view.outdated() and not _same(view, pool):
            differences.append(f"{inst.id}: its groups ask for something else than is kept")
    return differences


def _same(view: View, pool: Pool) -> bool:
    loads = [Load.of(group, pool.estimates, view.inst) for group in view.groups if group.members]
    kept = [(load.group, load.util, load.nbytes) for load in view.loads]
    models = {load.group.model.name for load in loads}
    total = sum(load.nbytes for load in loads)
    return kept == [(x.group, x.util, x.nbytes) for x in loads] and view.models == models and view.nbytes == total
