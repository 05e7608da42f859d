"""The cells of .csv and .tsv files: separators, quotes, headers, and as many rows as a file has."""

import csv
import gzip
import io
import itertools
import json

import pytest

from hf_domain.data.csv_files import SEPARATORS, check_table, find_separator
from hf_domain.data.files import load_files, locate_row

# What texts of the web hold: quotes, separators, breaks inside a cell, separators of lines that only Unicode knows.
TEXTS = [
    "plain",
    'a "quoted" word',
    '"opens',
    'closes"',
    "one, two; three\tfour|five",
    "two\nlines",
    "two\r\nlines of Windows",
    "\u2028line\u2029paragraph\x85next\x0bvertical\x0cpage\x1cfile",
    "  blanks  ",
    "NA",
    "null",
    "000123",
    "\u200b\ufefffound in the middle",
    "größe",
]


def write_csv(file, rows, separator=",", end="\n", quoting=csv.QUOTE_MINIMAL, encoding="utf-8", blank=""):
    content = io.StringIO()
    writer = csv.writer(content, delimiter=separator, lineterminator=end + blank, quoting=quoting)
    writer.writerows([("text", "label"), *rows])
    data = content.getvalue().encode(encoding)
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return str(file)


ROWS = [(text, "abc"[number % 3]) for number, text in enumerate(TEXTS * 3)]
SHAPES = [*itertools.product(SEPARATORS, ("\n", "\r\n"), (csv.QUOTE_MINIMAL, csv.QUOTE_ALL), ("utf-8", "utf-8-sig"))]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_a_file_is_read_to_the_rows_that_were_written(tmp_path, name, streaming):
    for separator, end, quoting, encoding in SHAPES:
        for blank in ("", end):
            file = write_csv(tmp_path / name, ROWS, separator, end, quoting, encoding, blank)
            found = [(row["text"], row["label"]) for row in load_files(file, streaming=streaming)]
            assert found == ROWS, (separator, end, quoting, encoding, blank)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n \n"])
def test_lines_and_objects_are_read_to_the_rows_that_were_written(tmp_path, end, encoding, streaming):
    lines = [text for text in TEXTS if "\n" not in text]
    (tmp_path / "t.txt").write_bytes((end.join(lines) + end).encode(encoding))
    found = [row["text"] for row in load_files(str(tmp_path / "t.txt"), streaming=streaming)]
    assert [text for text in found if not text.isspace() and text] == lines
    rows = [{"text": text, "label": label} for text, label in ROWS]
    (tmp_path / "t.jsonl").write_bytes(
        (end.join(json.dumps(row, ensure_ascii=False) for row in rows) + end).encode(encoding)
    )
    assert [*load_files(str(tmp_path / "t.jsonl"), streaming=streaming)] == rows
    (tmp_path / "t.json").write_bytes(json.dumps(rows, ensure_ascii=False).encode(encoding))
    assert [*load_files(str(tmp_path / "t.json"), streaming=streaming)] == rows


PLAIN = [(f"fruit {number}", "abc"[number % 3]) for number in range(30)]


def write_lines(file, rows, separator=","):
    file.write_text("".join(separator.join(row) + "\n" for row in [("text", "label"), *rows]), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("first", "last"),
    [('"opens here', 'closes" there'), ('"opens here', 'closes"'), ('"opens and never closes', "plain"), ('"', '"')],
)
def test_a_stray_quote_swallows_no_row(tmp_path, caplog, first, last, streaming):
    rows = [*PLAIN[:9], (first, "a"), *PLAIN[10:18], (last, "b"), *PLAIN[19:]]
    file = write_lines(tmp_path / "t.csv", rows)
    assert [(row["text"], row["label"]) for row in load_files(file, streaming=streaming)] == rows
    assert "t.csv are read as text" in caplog.text and "one of line 11" in caplog.text
    assert locate_row(file, 29) == f"line 31 of {file}"


@pytest.mark.parametrize("label_first", [False, True])
def test_a_stray_quote_among_quoted_cells_is_refused_with_its_lines(tmp_path, label_first):
    rows = [*PLAIN[:9], ('"opens here', "a"), *PLAIN[10:18], ('closes"', "b"), *PLAIN[19:], ('"one, two"', "c")]
    rows = [row[::-1] if label_first else row for row in rows]
    with pytest.raises(ValueError, match=r"in .*t.csv one of line 11 closes in line 20, and the lines look like rows"):
        load_files(write_lines(tmp_path / "t.csv", rows))
    rows[18] = tuple(cell.replace('closes"', 'closes" there') for cell in rows[18])
    with pytest.raises(ValueError, match=r"in .*t.csv one of line 11 closes before text in line 20. Delete the quote"):
        load_files(write_lines(tmp_path / "t.csv", rows))


def test_paragraphs_of_a_cell_are_no_rows(tmp_path):
    """Their lines hold as many commas as a row, but nothing that is a label elsewhere."""
    rows = [*PLAIN, ("One line, with a comma\nanother, and\na third", "a"), ("Two\nlines", "b")]
    found = load_files(write_csv(tmp_path / "t.csv", rows))
    assert [(row["text"], row["label"]) for row in found] == rows


def test_a_tsv_without_quoting_keeps_its_quotes(tmp_path, caplog):
    rows = [('"Yes" she said', "a"), ('5" pipe', "b"), ("plain, with a comma", "a")]
    file = write_lines(tmp_path / "t.tsv", rows, "\t")
    assert [(row["text"], row["label"]) for row in load_files(file)] == rows
    assert "one of line 2 closes before text in line 2" in caplog.text


def test_the_header_decides_on_the_separator(tmp_path, caplog):
    caplog.set_level("INFO")
    for separator, name in SEPARATORS.items():
        caplog.clear()
        file = write_csv(tmp_path / "t.csv", PLAIN, separator)
        assert find_separator(file) == separator and load_files(file).column_names == ["text", "label"]
        assert (f"separated by {name}, as its header is" in caplog.text) == (separator != ",")
    caplog.clear()
    assert load_files(write_csv(tmp_path / "t.tsv", PLAIN, "\t")).num_rows == 30 and "separated" not in caplog.text
    (tmp_path / "one.csv").write_text("text\nfirst; second\n")
    (tmp_path / "one.tsv").write_text("text\nfirst, second\n")
    assert find_separator(str(tmp_path / "one.csv")) == "," and find_separator(str(tmp_path / "one.tsv")) == "\t"


def test_files_that_are_written_differently_are_not_mixed(tmp_path):
    files = [write_csv(tmp_path / "a.csv", PLAIN), write_csv(tmp_path / "b.csv", PLAIN, ";")]
    with pytest.raises(ValueError, match=r"must be written alike, but .*a.csv, .*b.csv have commas and semicolons"):
        load_files(files)


@pytest.mark.parametrize(
    ("header", "warning"),
    [
        ("good,a", "'a' is also a cell of this column, in line 3"),
        ("good,1", "'1' is a number"),
        ("text,label", None),
        ("text,true", None),
    ],
)
def test_a_missing_header_is_announced(tmp_path, caplog, header, warning):
    file = tmp_path / "t.csv"
    file.write_text(f"{header}\nbad,b\nfine,a\n")
    check_table(str(file))
    assert (warning in caplog.text) if warning else not caplog.records


def test_fewer_rows_than_the_file_has_are_refused(tmp_path, monkeypatch):
    file = write_csv(tmp_path / "t.csv", PLAIN)
    first = load_files(file).select(range(20))
    monkeypatch.setattr("hf_domain.data.files.load_dataset", lambda *_, **__: first)
    with pytest.raises(ValueError, match=r"of the 30 rows of .*t.csv, 20 are. Write the file again as .jsonl"):
        load_files(file)
