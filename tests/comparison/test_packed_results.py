"""Results as they are packed into the repository."""

import json
import lzma
import sys

import pack_results


def test_every_result_is_packed_once_and_the_same_each_time(content, tmp_path, monkeypatch, run_plan):
    content["methods"] = {"no_adaptation": None, "dapt": None}
    run_plan()
    packed = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["pack_results.py", str(tmp_path / "plan"), str(tmp_path / "packed")])
        pack_results.main()
        packed.append((tmp_path / "packed" / "results.jsonl.xz").read_bytes())
    assert packed[0] == packed[1] and ".png" not in (tmp_path / "packed" / "report.md").read_text()
    lines = [json.loads(line) for line in lzma.decompress(packed[0]).splitlines()]
    assert {line["name"] for line in lines} == {file.name for file in (tmp_path / "plan" / "results").glob("*.json")}
    assert not any("validation" in line for line in lines)
