"""Records of measurements that are none, and files of them that cannot be read or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neptune.errors import RecordError
from neptune.records.exchange import (
    export_records,
    import_records,
    merge_records,
    of_program,
    prune_records,
    user_store,
)
from neptune.records.record import Record
from neptune.records.store import Store
from tests.errors.table import case

GOOD: dict[str, Any] = {
    "structure": "0123456789abcdef" * 2,
    "device": "H200",
    "template": "softmax_row",
    "sizes": {"rows": 4096, "cols": 1024},
    "params": {"BLOCK_M": 1},
    "us": [12.5],
    "versions": {"neptune": "0.1.0"},
    "when": "2026-11-22T23:07:44Z",
}


@case(RecordError)
def a_template_that_is_a_path():
    Record(**{**GOOD, "template": "../../template.py"})


@case(RecordError)
def a_time_that_is_no_number():
    Record(**{**GOOD, "us": [float("nan")]})


@case(RecordError)
def a_size_of_zero():
    Record(**{**GOOD, "sizes": {"rows": 0}})


@case(RecordError)
def an_import_of_no_file(tmp_path):
    import_records(Store(tmp_path / "cache"), [tmp_path / "missing.jsonl"])


@case(RecordError)
def an_import_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("the fastest was 12 us\n")
    import_records(Store(tmp_path / "cache"), [tmp_path / "notes.txt"])


@case(RecordError)
def a_merge_into_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "mine.jsonl").write_bytes(Record(**GOOD).line())
    merge_records([tmp_path / "mine.jsonl"], tmp_path / "nowhere" / "all.jsonl")


@case(RecordError)
def an_export_to_a_folder(tmp_path):
    Store(tmp_path / "cache").append(Record(**GOOD))
    export_records(Store(tmp_path / "cache"), Path(tmp_path))


@case(RecordError)
def pruned_to_nothing(tmp_path):
    prune_records(Store(tmp_path / "cache"), 0)


@case(RecordError)
def no_folder_for_records():
    user_store()


@case(RecordError)
def a_program_without_records():
    of_program([Record(**GOOD, name="softmax")], "neptune cache show sotfmax", "sotfmax")
