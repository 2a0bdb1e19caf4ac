"""Probe: parquet to JSON and back, for tests whose own interpreter has no pyarrow.

Usage: probe_tables.py write FILE ROWS.json     (a row may say how often it stands there, as "repeat")
       probe_tables.py read FILE...             prints the rows of each
"""

import json
import sys

import pyarrow
import pyarrow.parquet


def main():
    verb, *files = sys.argv[1:]
    if verb == "read":
        print(json.dumps([pyarrow.parquet.read_table(file).to_pylist() for file in files]))
        return
    with open(files[1], encoding="utf-8") as file:
        rows = json.load(file)
    repeated = [row for row in rows for _ in range(row.pop("repeat", 1))]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(repeated), files[0])
    print(len(repeated))


main()
