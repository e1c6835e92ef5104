"""`deelog config` and `deelog validate`: the fields of a configuration, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deelog_connector.cli.config import markdown, template
from deelog_schemas.config import FIELDS, load, parse
from deelog_schemas.config.field import REQUIRED
from deelog_schemas.config.validation import definitions
from tests.connector.cli.test_cli import deelog
from tests.support.paths import ROOT

GOOD = "topic.prefix=shop\nbootstrap.servers=k1:9092\nnode.id=n1\ncache.name=sessions\n"


def test_validate_tells_right_from_wrong(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    file.write_text(GOOD)
    right = deelog("validate", str(file))
    assert (right.returncode, right.stdout) == (0, f"{file}: right for a node, 4 fields set\n")
    assert deelog("validate", "--role", "diff", str(file)).returncode == 2
    file.write_text(GOOD + "cache.ack=1\ncache.acks=2\nproducer.override.sasl.password=hunter2\n")
    wrong = deelog("validate", str(file))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines() == [
        f"Error: {file}: 2 errors",
        "  cache.ack: is no field of deelog; did you mean cache.acks?",
        "  cache.acks = '2': must be one of all, 1, 0",
    ]
    missing = deelog("validate", str(tmp_path / "none.json"))
    assert missing.returncode == 2
    assert missing.stderr == f"Error: {tmp_path / 'none.json'}: file: cannot be read: No such file or directory\n"


def test_what_is_in_the_process_itself_is_not_connected_to(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    file.write_text(GOOD)
    alone = deelog("validate", "--connect", str(file))
    assert alone.returncode == 2
    assert "connector.class=deelog.CachetoolsConnector is in the process itself" in " ".join(alone.stderr.split())
    both = deelog("validate", "--connect", "--format", "json", str(file))
    assert both.returncode == 2
    assert "--connect is for --format text" in both.stderr


def test_an_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hiredis.py").write_text("raise ModuleNotFoundError('as if it were not installed', name='hiredis')")
    file = tmp_path / "node.properties"
    file.write_text(GOOD + "connector.class=deelog.RedisConnector\ncache.value.format=json\n")
    found = deelog("validate", "--connect", str(file), PYTHONPATH=str(tmp_path))
    assert found.returncode == 2
    assert "needs hiredis, which is not installed: pip install 'deelog[redis]'" in found.stderr


def test_validate_looks_up_references_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    file.write_text(GOOD + "max.batch.size=${env:DEELOG_TEST_SIZE}\n")
    assert deelog("validate", str(file)).returncode == 0
    unset = deelog("validate", "--resolve", str(file))
    assert unset.returncode == 2
    assert "${env:DEELOG_TEST_SIZE} cannot be resolved" in unset.stderr
    assert deelog("validate", "--resolve", str(file), DEELOG_TEST_SIZE="7").returncode == 0
    odd = deelog("validate", "--resolve", str(file), DEELOG_TEST_SIZE="hunter2", DEELOG_DEBUG="1")
    assert odd.returncode == 2
    assert "Traceback" in odd.stderr
    assert "hunter2" not in odd.stderr


def test_validate_asks_the_client_library_about_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    file.write_text(GOOD + "producer.override.linger.ms=abc\nadmin.override.debug=nonsense\n")
    assert deelog("validate", str(file)).returncode == 0
    refused = deelog("validate", "--resolve", str(file))
    assert refused.returncode == 2
    assert "producer.override.*: Invalid value for configuration property" in refused.stderr
    assert 'admin.override.*: Invalid value "nonsense"' in refused.stderr
    file.write_text(GOOD + "producer.override.linger.ms=7\nconsumer.override.fetch.min.bytes=9\n")
    assert deelog("validate", "--resolve", str(file)).returncode == 0


def test_the_page_of_all_fields_is_fresh() -> None:
    page = ROOT / "docs" / "reference" / "configuration.md"
    remedy = "stale: run `deelog config --format md > docs/reference/configuration.md`"
    assert page.read_text(encoding="utf-8") == markdown(), remedy


def test_the_page_has_every_field_in_a_whole_row() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    for name in FIELDS:
        (row,) = [row for row in rows if row.startswith(f"| `{name}` |") and row.count("|") == 5]
        assert FIELDS[name].doc in row


def test_the_template_is_a_file_to_begin_with(tmp_path: Path) -> None:
    file = tmp_path / "new.properties"
    filled = dict(line.split("=") for line in GOOD.splitlines()) | {"diff.checkpoint.location": "/c"}
    text = template()
    for name, value in filled.items():
        assert f"\n{name}=\n" in text
        text = text.replace(f"\n{name}=\n", f"\n{name}={value}\n")
    file.write_text(text)
    config = load(file)
    assert dict(config) == dict(parse(filled))
    # The shown defaults are the real ones: without the comment signs they change nothing.
    shown = [line for line in text.splitlines() if line.startswith("#:") and not line.endswith("=")]
    assert len(shown) > 40
    file.write_text(text + "".join(line.removeprefix("#:") + "\n" for line in shown))
    assert dict(load(file)) == dict(config)


def test_definitions_are_connects() -> None:
    listed = json.loads(deelog("config", "--format", "json").stdout)
    assert listed == definitions()
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name.keys() == FIELDS.keys()
    assert {entry["type"] for entry in listed} <= {"STRING", "INT", "LONG", "BOOLEAN", "LIST", "CLASS", "PASSWORD"}
    assert by_name["max.batch.size"]["default_value"] == "8192"
    assert by_name["node.id"]["required"] is True
    assert by_name["node.id"]["default_value"] is None
    assert [entry["required"] for entry in listed] == [field.default is REQUIRED for field in FIELDS.values()]
