"""Parts of a request that have no effect, in a header for its client and in a counter for operators."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aegaeon_gateway.http.record import Record
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.request.parse import LABELS
from aegaeon_gateway.request.receipt import HEADER, header_of, labels_of

log = logging.getLogger(__name__)


def tell_ignored(record: Record, entries: Sequence[str], metrics: Metrics) -> None:
    """In a header of the answer, in the counter by field, and in the log."""
    if not entries:
        return
    record.headers[HEADER] = header = header_of(entries)
    for label in labels_of(entries, LABELS):
        metrics.ignored.labels(label).inc()
    log.debug("%s: ignored: %s", record.log_id, header)
