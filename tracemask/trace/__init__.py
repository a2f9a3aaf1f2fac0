"""Traces: the canonical model of an agent run, importers for the logs that people have, a recorder.

Knows no token.
"""

from tracemask.trace.authors import AuthorRules
from tracemask.trace.chat import to_chat, trace_to_chat
from tracemask.trace.model import Message, Trace
from tracemask.trace.published import schema
from tracemask.trace.reading import (
    InputFile,
    Reading,
    Unit,
    UnitRange,
    count_units,
    inputs,
    read_traces,
    read_units,
    unit_ranges,
)

__all__ = [
    "AuthorRules",
    "InputFile",
    "Message",
    "Reading",
    "Trace",
    "Unit",
    "UnitRange",
    "count_units",
    "inputs",
    "read_traces",
    "read_units",
    "schema",
    "to_chat",
    "trace_to_chat",
    "unit_ranges",
]
