"""The stored history, over pytest-benchmark's own files: written, read back, compared."""

from pytest_moetier.history.sessions import SCHEMA_VERSION, STORED_VERSION
from pytest_moetier.history.store import (
    cell_json,
    extra_info,
    guest_json,
    guests_of,
    list_json,
    machine_of,
    metric_json,
    proof_json,
    save_one_at_a_time,
    storage_problem,
    trace_info,
    validate,
)

__all__ = [
    "SCHEMA_VERSION",
    "STORED_VERSION",
    "cell_json",
    "extra_info",
    "guest_json",
    "guests_of",
    "list_json",
    "machine_of",
    "metric_json",
    "proof_json",
    "save_one_at_a_time",
    "storage_problem",
    "trace_info",
    "validate",
]
