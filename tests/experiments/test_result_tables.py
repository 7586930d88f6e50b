"""Tables of experiments as Markdown, CSV and JSON, with any characters in names and with missing values."""

import csv
import io
import json

from vitreous.experiments.grid.statistics import SeedSummary
from vitreous.experiments.grid.tables import MISSING, ResultTable

ODD = 'a|b\nc\x1b[31m,"d"\r;\x07=1+1\u202e é'
TABLE = ResultTable(
    ("name", "px", "val (%)", "paper"),
    (
        ("plain", 8, SeedSummary(12.345, 0.678, 3), 64.2),
        (ODD, 1234567, SeedSummary(50.0, None, 1), None),
        ("failed", None, None, 12345.6),
    ),
    (f"a note on {ODD}",),
)


def test_markdown() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "| name | px | val (%) | paper |"
    assert lines[1] == "|---|---:|---:|---:|"
    assert lines[2] == "| plain | 8 | 12.3 ± 0.7 | 64.2 |"
    assert lines[3].startswith("| a\\|b\ufffdc\ufffd[31m,")
    assert lines[3].endswith(f" é | 1,234,567 | 50.0 | {MISSING} |")
    assert lines[4] == f"| failed | {MISSING} | {MISSING} | 12,346 |"
    assert lines[5] == ""
    assert lines[6].startswith("- a note on a\\|b")
    assert len(lines) == 7
    assert not set("\x1b\x07\r\u202e") & set(TABLE.markdown())


def test_csv_is_exact() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv(), newline="")))
    assert rows[0] == ["name", "px", "val (%)", "val (%): standard deviation", "val (%): seeds", "paper"]
    assert rows[1] == ["plain", "8", "12.345", "0.678", "3", "64.2"]
    assert rows[2] == [ODD, "1234567", "50.0", "", "1", ""]
    assert rows[3] == ["failed", "", "", "", "", "12345.6"]
    assert len(rows) == 4


def test_json() -> None:
    found = json.loads(json.dumps(TABLE.to_json()))
    assert found["columns"] == list(TABLE.columns)
    assert found["rows"][0] == ["plain", 8, {"mean": 12.345, "std": 0.678, "seeds": 3}, 64.2]
    assert found["rows"][1] == [ODD, 1234567, {"mean": 50.0, "std": None, "seeds": 1}, None]
    assert found["notes"] == list(TABLE.notes)


def test_columns_of_text_are_on_the_left() -> None:
    assert TABLE.text_columns == 1
    assert ResultTable(("a", "b"), (("x", "y"), (None, 1))).text_columns == 2


def test_a_table_without_rows() -> None:
    empty = ResultTable(("a", "b"), ())
    assert empty.markdown().splitlines() == ["| a | b |", "|---:|---:|"]
    assert list(csv.reader(io.StringIO(empty.csv()))) == [["a", "b"]]
