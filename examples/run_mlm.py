r"""Continue the pre-training of an encoder on domain text: plain masked LM (DAPT, TAPT) or a method of this package.

    python examples/run_mlm.py --model_name_or_path bert-base-uncased --method varmae \
        --train_file corpus.txt.gz --output_dir varmae-cs --do_train --do_eval --num_train_epochs 3

`--method dapt` trains the encoder itself; `--method lora` trains low-rank changes, merged at the end. Every other
method builds its model around the encoder. The recommended start keeps the encoder's predictions if the method allows
it; `--start paper` starts as the paper does. Set options of a method with `--config_overrides
kl_weight=10,unmasked_ratio=1`. If `--model_name_or_path` is a checkpoint of the method, training continues from it.
Repeat the command to resume a killed run from its last checkpoint; Trainer saves one every 500 steps (`--save_steps`).

`--expanded_vocabulary` names a folder that run_expand_vocab.py wrote. The encoder gets the new rows before training;
with dapt this is AdaLM. exBERT keeps the new rows in a separate extension and trains only the extension. A second stage
trains everything:

    python examples/run_mlm.py --model_name_or_path <first stage> --method exbert \
        --config_overrides freeze_backbone=false --output_dir <second stage> ...

`--method exbert_adapter` trains exBERT as an adapter of peft. The output holds the adapter, in `adapter/`, and the same
weights as a model.

`--method gmap --memory_name_or_path bert-base-uncased` trains an encoder that reads a frozen general encoder. Both must
have the same tokenizer.

RADA reads passages of a datastore beside the text. The text should not be in the datastore: `--held_out_file
rest.jsonl` of build_datastore.py leaves out a tenth of the corpus.

    python examples/run_mlm.py --method rada --datastore datastore --train_file rest.jsonl ...
"""

from hf_domain.methods.rada.passages import PassageArguments
from hf_domain.training.arguments import PretrainerArguments, parse_arguments
from hf_domain.training.masked_lm_corpus import CorpusArguments
from hf_domain.training.pretraining import pretrain
from hf_domain.training.pretraining_arguments import PretrainingArguments
from hf_domain.training.run import start_run
from hf_domain.training.run_folder import run_in_folder

ARGUMENTS = (PretrainingArguments, CorpusArguments, PassageArguments, PretrainerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1], arguments[0].verbose)
    run_in_folder(pretrain, *arguments)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
