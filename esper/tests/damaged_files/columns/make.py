"""Makes the Parquet files of the tests, as libraries write them (pyarrow 26.0.1): python make.py"""
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

folder = Path(__file__).parent
rows = range(30)
table = {
    "a": pa.array(rows, pa.int64()),
    "b": pa.array([i % 7 / 2 for i in rows], pa.float64()),
    "c": pa.array([["no", "yes"][i % 2] for i in rows], pa.string()),
}
write = lambda name, columns, **options: pq.write_table(pa.table(columns), folder / name, **options)
write("rows.parquet", table)
write("gzip.parquet", table, compression="gzip", data_page_version="2.0", row_group_size=7)
write("zstd.parquet", table, compression="zstd")
# One column of each kind that is not read, in front of what is; and what pandas calls the numbers of rows, behind it.
write("kinds.parquet", {
    "list": pa.array([[i, i] for i in rows], pa.list_(pa.int32())),
    "time": pa.array([i * 1000 for i in rows], pa.timestamp("ms")),
    "bytes": pa.array([b"\xff\x00"] * 30, pa.binary()),
    "flag": pa.array([i % 3 == 0 for i in rows], pa.bool_()),
    **table,
    "__index_level_0__": pa.array(reversed(rows), pa.int64()),
})
gap = lambda at, value: pa.array([value if i == at else i for i in rows], pa.float64())
write("null.parquet", {**table, "b": gap(4, None)})
write("nan.parquet", {**table, "b": gap(4, float("nan"))})
write("inf.parquet", {**table, "b": gap(4, float("inf"))})
write("words.parquet", {**table, "b": pa.array(["four" if i == 4 else str(i) for i in rows])})
write("one_class.parquet", {**table, "c": pa.array(["yes"] * 30)})
write("one_column.parquet", {"a": table["a"]})
write("no_rows.parquet", {name: column.slice(0, 0) for name, column in table.items()})
# 20 million rows in a few bytes.
many = pa.array(np.zeros(20_000_000, np.int8))
write("bomb.parquet", {"a": many, "b": many}, row_group_size=20_000_000, data_page_size=1 << 30, write_batch_size=20_000_000, write_statistics=False)
