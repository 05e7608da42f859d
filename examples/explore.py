"""Show on a local page what a folder holds: an adapted or fine-tuned model, a vocabulary, a datastore, a comparison.

    python examples/explore.py adapted --encoder roberta-base          # before and after, side by side
    python examples/explore.py task --datastore datastore              # a RADA, with the passages that it reads
    python examples/explore.py plan.yaml                               # the report and the models of a comparison
    python examples/explore.py adapted --space_dir space               # a folder that is ready to be a Space

Nothing leaves this machine unless you pass `--share`. Press Ctrl+C to stop.
"""

import argparse

import datasets
import transformers

from hf_domain.exploration.folders import open_folder
from hf_domain.exploration.page import launch_page, make_page
from hf_domain.exploration.space import write_space
from hf_domain.training.arguments import OneLineParser


def main() -> None:
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", help="model, vocabulary, datastore, comparison or its plan; or a model on the Hub")
    parser.add_argument("--encoder", help="encoder before its adaptation; default: the one on the Hub that was adapted")
    parser.add_argument("--datastore", help="folder of the passages that a RADA reads")
    parser.add_argument("--space_dir", help="write a folder that is ready to be a Space, instead of showing the page")
    parser.add_argument("--port", type=int, help="of the page; default: the first free one from 7860")
    parser.add_argument("--share", action="store_true", help="also give the page a public address, by Gradio")
    args = parser.parse_args()
    if args.port is not None and not 0 < args.port < 65536:
        raise ValueError(f"--port must be from 1 to 65535, but is {args.port}")
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    found = open_folder(args.folder, args.encoder, args.datastore)
    if args.space_dir:
        folder = write_space(args.space_dir, found)
        print(f"Ready for the Hub: hf upload you/{folder.name} {folder} --repo-type space")
        return
    page = make_page(found)
    print(
        f"Open {launch_page(page, port=args.port, share=args.share)} in a browser; Ctrl+C stops the page.", flush=True
    )
    page.block_thread()


if __name__ == "__main__":
    main()
