"""Results as they are packed into the repository."""

import json
import lzma

import pack_results
from script_runs import call_main


def test_every_result_is_packed_once_and_the_same_each_time(content, tmp_path, monkeypatch, run_plan):
    content["methods"] = {"no_adaptation": None, "dapt": None}
    run_plan()
    packed = []
    for _ in range(2):
        call_main(pack_results.main, monkeypatch, tmp_path / "plan", tmp_path / "packed")
        packed.append((tmp_path / "packed" / "results.jsonl.xz").read_bytes())
    assert packed[0] == packed[1] and ".png" not in (tmp_path / "packed" / "report.md").read_text()
    lines = [json.loads(line) for line in lzma.decompress(packed[0]).splitlines()]
    assert {line["name"] for line in lines} == {file.name for file in (tmp_path / "plan" / "results").glob("*.json")}
    assert not any("validation" in line for line in lines)
