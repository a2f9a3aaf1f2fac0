"""Some fields of an Arrow file's record batches, checked before a value is taken. Knows no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Part:
    """The fields `names`, of one batch at a time. What Arrow takes on trust, such as where a text ends, is looked at.

    buffer: the file, of which the other fields are then not unpacked; the last batch is kept. mapped: gives the whole
    batches instead, where they are at hand.
    """

    def __init__(
        self,
        schema: pa.Schema,
        names: Sequence[str],
        *,
        buffer: pa.Buffer | None = None,
        mapped: Callable[[int], pa.RecordBatch] | None = None,
    ) -> None:
        self._buffer, self._mapped = buffer, mapped
        self._fields = [i for i, field in enumerate(schema) if field.name in names]
        places = self._fields if mapped is not None else range(len(self._fields))
        self.index = {str(schema.field(i).name): at for i, at in zip(self._fields, places, strict=True)}
        self._kept: tuple[int, pa.RecordBatch] | None = None
        self._sound: set[tuple[int, int]] = set()

    def column(self, k: int, at: int) -> pa.Array:
        """Field `at` (see `index`) of record batch `k`. ArrowInvalid where it is damaged."""
        column = self._batch(k).column(at)
        if (k, at) not in self._sound:
            column.validate(full=True)
            self._sound.add((k, at))
        return column

    def _batch(self, k: int) -> pa.RecordBatch:
        if self._mapped is not None:
            return self._mapped(k)
        kept = self._kept  # another thread may put its own there
        if kept is None or kept[0] != k:
            self._sound.clear()
            kept = self._kept = k, self._reader.get_batch(k)
        return kept[1]

    @cached_property
    def _reader(self) -> pa.RecordBatchFileReader:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(included_fields=self._fields, use_threads=False)
        return pa.ipc.open_file(pa.BufferReader(self._buffer), options=options)
