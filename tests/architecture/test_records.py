"""Tables of the benchmark pages are those that the benchmarks printed."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record, result_tables = benchmark("record"), benchmark("result_tables")


@pytest.mark.parametrize("page", sorted(record.PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_that_were_recorded(page):
    assert not record.update(page, write=False), "python benchmarks/record.py pages"


@pytest.mark.parametrize("page", sorted(result_tables.PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_the_stored_results(page):
    assert not result_tables.update(page, write=False), "python benchmarks/result_tables.py"


def typed_tables(text):
    """The rows of each table that is not made from results, and of which most cells are figures."""
    text = result_tables.MARKED.sub("", record.MARKED.sub("", text))
    for rows in re.findall(r"^\|.*\n\| ?---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        cells = [cell.strip(" *~") for row in rows.splitlines() for cell in row.split("|")[2:-1]]
        if sum(bool(re.match(r"-?\.?\d", cell)) for cell in cells) > len(cells) / 2:
            yield rows


@pytest.mark.parametrize("page", sorted(record.PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_no_table_of_figures_is_typed(page):
    assert list(typed_tables(page.read_text())) == []


def test_a_typed_table_is_found():
    rows = "| a | 1 | 2 |\n| b | 3 | 4 |\n"
    table = "| name | n | s |\n|---|---|---|\n" + rows
    assert list(typed_tables(f"Before.\n\n{table}\nAfter.\n")) == [rows]
    assert list(typed_tables(f"<!-- table: rotated -->\n{table}<!-- end of table -->\n")) == []


def test_every_record_is_on_a_page():
    shown = {found[2] for page in record.PAGES.glob("*.md") for found in record.MARKED.finditer(page.read_text())}
    assert shown == {path.stem for path in record.RECORDS.glob("*.json")}


def test_a_record_is_shown_with_its_source(tmp_path):
    script = tmp_path / "benchmark.py"
    script.write_text("print('a remark\\n\\n| n | s |\\n|---|---|\\n| 1 | 2 |\\nmore\\n| 3 | 4 |')")
    (tmp_path / "small.json").write_text(json.dumps(record.run_and_record([str(script)])))
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- record: small -->\nold\n<!-- end of record -->\n\nAfter.\n")
    assert record.update(page, write=True, records=tmp_path)
    assert not record.update(page, write=False, records=tmp_path)
    text = page.read_text()
    assert re.search(r"; python [\d.]+, unpose [\d.]+, ", text)
    assert record.commit() in text
    assert "old" not in text
    assert text.startswith(
        "Before.\n\n<!-- record: small -->\n```text\na remark\n```\n\n| n | s |\n|---|---|\n| 1 | 2 |\n"
    )
    assert "```text\nmore\n```\n\n| n | s |\n|---|---|\n| 3 | 4 |\n\n*Printed by* `python " in text
    assert text.endswith("processor time.*\n<!-- end of record -->\n\nAfter.\n")


def test_columns_of_a_record_are_not_wrapped():
    lines = [
        "name     n",
        "first    1",
        "One line after it.",
        "",
        "a sentence",
        "two  columns   after it",
        "",
        "|a|",
        "|1 ± 2|",
    ]
    text = record.rendered(
        {"command": "", "date": "", "machine": "", "versions": {}, "cpu_seconds": 1, "output": lines}
    )
    assert text.startswith("```none\nname     n\nfirst    1\n```\n\n```text\nOne line after it.\n```\n")
    assert "\n```text\na sentence\ntwo  columns   after it\n```\n" in text
    assert "|1\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}2|" in text


def test_a_benchmark_that_fails_is_not_recorded(tmp_path):
    script = tmp_path / "benchmark.py"
    script.write_text("print('| 1 |'); raise SystemExit(3)")
    with pytest.raises(SystemExit, match="status 3; nothing was recorded"):
        record.run_and_record([str(script)])
