r"""Continue the pre-training of an encoder on domain text: plain masked LM (DAPT, TAPT) or a method of this package.

    python examples/run_mlm.py --model_name_or_path bert-base-uncased --method varmae \
        --train_file corpus.txt.gz --output_dir varmae-cs --do_train --do_eval --num_train_epochs 3

`--method dapt` trains the encoder itself; `--method lora` trains low-rank changes, merged at the end. Every other
method builds its model around the encoder. The recommended start keeps the encoder's predictions if the method allows
it; `--start paper` starts as the paper does. Set options of a method with `--config_overrides
kl_weight=10,unmasked_ratio=0.15`. If `--model_name_or_path` is a checkpoint of the method, training continues from it.
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

from transformers import Trainer, TrainingArguments

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.corpora import check_batch
from hf_domain.methods import METHODS
from hf_domain.methods.rada.passages import PassageArguments, load_passage_reader
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.callbacks import log_auxiliary_losses, renew_masks
from hf_domain.training.pretraining import (
    CorpusArguments,
    PretrainingArguments,
    check_options,
    evaluate_masked_lm,
    evaluate_start,
    load_delta,
    load_examples,
    load_masked_lm,
    make_collator,
    prepare_new_rows,
    prepare_start,
)
from hf_domain.training.run import finish_run, load_tokenizer, run_training, start_run
from hf_domain.training.run_folder import run_in_folder

ARGUMENTS = (PretrainingArguments, CorpusArguments, PassageArguments, TrainingArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1], arguments[0].verbose)
    run_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    check_options(model_args, data_args, training_args)
    delta = load_delta(model_args)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    model = load_masked_lm(model_args, tokenizer, delta)
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method)
    with training_args.main_process_first(desc="loading and tokenizing the corpus"):
        examples, documents = load_examples(data_args, model_args, training_args.do_eval, tokenizer)
        if passages is not None:
            examples = passages.look_up_blocks(examples, data_args.preprocessing_num_workers)
    if training_args.do_train:
        check_batch(examples["train"], training_args.train_batch_size * training_args.gradient_accumulation_steps)
    masking = collator = make_collator(tokenizer, data_args, training_args)
    if passages is not None:
        passages.fill_cache(examples, training_args, data_args.dask_scheduler)
        collator = passages.collate(masking)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=examples["train"] if training_args.do_train else None,
        eval_dataset=examples["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=collator,
    )
    method = METHODS[model_args.method]
    # Push nothing before an adapter is finished: loading the folder would apply it to the weights beside it. The
    # trainer has created the repository by now: one that cannot be created must not cost a training.
    pushes, training_args.push_to_hub = training_args.push_to_hub, training_args.push_to_hub and not method.finish
    renew_masks(trainer, masking)
    log_auxiliary_losses(trainer)
    prepare_new_rows(trainer, delta, model_args)

    if training_args.do_train:
        prepare_start(trainer, model_args)
        evaluate_start(trainer, examples.get("general"))
        run_training(trainer)
    if training_args.do_eval:
        evaluate_masked_lm(trainer, examples.get("general"))
    if method.finish and training_args.do_train and training_args.should_save:
        trainer.model = method.finish(trainer.accelerator.unwrap_model(trainer.model), training_args.output_dir)
    training_args.push_to_hub = pushes
    finish_run(trainer, "fill-mask", model_args, data_args, passage_args, documents)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
