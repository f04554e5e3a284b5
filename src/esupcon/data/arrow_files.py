"""Columns of Arrow and Parquet files, some rows at a time, through pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from esupcon.data.decode import Encoded
from esupcon.data.listing import stamp_of

_ROWS = 64  # images held encoded at a time


class ArrowImages:
    """The images of one column, read in order; a few are held at a time."""

    def __init__(self, files: list[Path], column: str) -> None:
        self._files = files
        self._column = column
        self._counts = [_n_rows(file) for file in files]
        self.n_bytes = sum(file.stat().st_size for file in files)

    def __len__(self) -> int:
        return sum(self._counts)

    def __iter__(self) -> Iterator[Encoded]:
        for file in self._files:
            yield from self._in_file(file)

    def sample(self, n: int) -> Iterator[Encoded]:
        """The first rows of every file."""
        for file in self._files:
            yield from islice(self._in_file(file), max(1, n // len(self._files)))

    def _in_file(self, file: Path) -> Iterator[Encoded]:
        for column in column_pieces(file, self._column):
            for start in range(0, len(column), _ROWS):
                for cell in column.slice(start, _ROWS).to_pylist():
                    yield _encoded(cell, file.parent)

    def name(self, i: int) -> str:
        for file, count in zip(self._files, self._counts, strict=True):
            if i < count:
                return f"{file}, row {i}"
            i -= count
        raise IndexError(i)

    def stamp(self) -> list[object]:
        return [self._column, [(str(file.absolute()), *stamp_of(str(file))) for file in self._files]]


def _encoded(cell: Any, folder: Path) -> Encoded:
    """A cell is the bytes, or {bytes, path} of which one may be missing."""
    data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    if data is None and path:
        return str(folder / path)
    return bytes(data) if isinstance(data, bytes) else b""


def pyarrow_module() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise ModuleNotFoundError(
            "Arrow and Parquet files are read by pyarrow, which is not installed: pip install 'esupcon[parquet]'."
        ) from None
    return pyarrow


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A ParquetFile, or the stream of record batches that `datasets` writes."""
    pa = pyarrow_module()
    try:
        if file.suffix.lower() == ".parquet":
            with pa.parquet.ParquetFile(file) as table:
                yield table
        else:
            with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
                yield stream
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}.") from None


def column_pieces(file: Path, column: str) -> Iterator[Any]:
    """The column, some rows at a time."""
    with opened(file) as table:
        parquet = file.suffix.lower() == ".parquet"
        for batch in table.iter_batches(batch_size=_ROWS, columns=[column]) if parquet else table:
            where = batch.schema.get_field_index(column)
            if where < 0:
                raise ValueError(f"{file} has no column {column!r}, unlike the others.")
            yield batch.column(where)


def _n_rows(file: Path) -> int:
    with opened(file) as table:
        if file.suffix.lower() == ".parquet":
            return int(table.metadata.num_rows)
        return sum(batch.num_rows for batch in table)
