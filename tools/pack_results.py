"""Pack the results of a comparison for this repository.

    python tools/pack_results.py verdict results/verdict

Each result becomes a line of results.jsonl.xz, without its predictions on validation, which no table reads. The plan is
copied, and the report without its pictures.
"""

import argparse
import json
import lzma
import shutil
from pathlib import Path

from hf_domain.safe_io import read_json, write_text


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
    lines = []
    for address in sorted(read_json(args.comparison / "plan.json")["steps"].values()):
        file = args.comparison / "results" / f"{address}.json"
        if file.is_file():
            result = {"name": file.name} | read_json(file)
            result.pop("validation", None)
            lines.append(f"{json.dumps(result)}\n")
    packed = args.output_dir / "results.jsonl.xz"
    # The runs of a task repeat its labels, farther apart than gzip sees.
    packed.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
    print(f"{packed}: {packed.stat().st_size} bytes")


if __name__ == "__main__":
    main()
