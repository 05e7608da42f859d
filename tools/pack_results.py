"""Pack the results of a comparison for this repository.

    python tools/pack_results.py verdict results/verdict

Each result becomes a line of results.jsonl.gz, without its predictions on validation, which no table reads. The plan is
copied, and the report without its pictures.
"""

import argparse
import gzip
import json
import shutil
from pathlib import Path

from hf_domain.files import read_json, write_text


def main() -> None:
    """Pack the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path, help="Output folder of a comparison.")
    parser.add_argument("output_dir", type=Path, help="Folder to write.")
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    shutil.copy(args.comparison / "plan.json", args.output_dir)
    report = (args.comparison / "report.md").read_text(encoding="utf-8").split("\n")
    write_text(args.output_dir / "report.md", "\n".join(line for line in report if not line.startswith("![")))
    steps = read_json(args.comparison / "plan.json")["steps"]
    packed = args.output_dir / "results.jsonl.gz"
    # Without a time and a name in its header, the same results make the same file.
    with packed.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as lines:
        for address in sorted(steps.values()):
            result_file = args.comparison / "results" / f"{address}.json"
            if result_file.is_file():
                result = {"name": result_file.name} | read_json(result_file)
                result.pop("validation", None)
                lines.write(f"{json.dumps(result)}\n".encode())
    print(f"{packed}: {packed.stat().st_size} bytes")


if __name__ == "__main__":
    main()
