"""The bases of what a policy keeps on the core's rows: a batch and a row. Each policy has its own kinds."""

from __future__ import annotations


class Batch:
    """Sequences of one model that share turns: a policy has its own kind. One that becomes ready joins a turn of its
    batch that is out."""

    __slots__ = ()

    def changed(self) -> None:
        """A member has other tokens, out or to come, than before."""


class Row:
    """The thoughts of a policy on one sequence, beside the facts that the core has. A policy has its own kind."""

    __slots__ = ()
