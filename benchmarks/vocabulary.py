"""Measure vocabulary expansion: time, memory, tokenizer speed, new rows, and the loss right after the expansion.

python benchmarks/vocabulary.py --model_name_or_path bert-base-uncased \
    --corpus corpus.txt.gz --heldout heldout.txt.gz --output vocabulary.json
"""

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM
from transformers.utils import logging

from hf_domain.data.corpora import read_texts
from hf_domain.methods.new_embeddings import apply_delta
from hf_domain.tokenization import VocabularyDelta, batch_texts, count_words, expand_vocabulary

REFERENCE_WORDS = 236_000  # AdaLM's released script took 22 to 104 s per size on this many words


def measure_expansion(model: str, corpus: str, share: float, max_size: int, workers: int) -> dict:
    """Count a share of a corpus and follow the curve to `max_size`; run this in its own process."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    kept = (text for number, text in enumerate(read_texts(corpus)) if number % 100 < share * 100)
    start, start_cpu = time.perf_counter(), _read_cpu_seconds()
    with ProcessPoolExecutor(workers) as executor:
        counts = count_words(batch_texts(kept), tokenizer.backend_tokenizer, executor, progress=False)
    counted, counted_cpu = time.perf_counter(), _read_cpu_seconds()
    _, _, report = expand_vocabulary(tokenizer, counts, max_size=max_size, min_frequency=1, progress=False)
    done, done_cpu = time.perf_counter(), _read_cpu_seconds()
    # Kilobytes. For children, only the largest is reported, so this is an upper bound of the memory in use at once.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory += workers * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "share": share,
        "words": report.words,
        "distinct_words": report.distinct_words,
        "counting_s": counted - start,
        "expansion_s": done - counted,
        "counting_cpu_s": counted_cpu - start_cpu,
        "expansion_cpu_s": done_cpu - counted_cpu,
        "peak_gb": memory / 1e6,
        "sizes": [point.size for point in report.curve],
    }


def _read_cpu_seconds() -> float:
    """Return the processor time so far, including ended children; a busy machine changes it little."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure_reference(model: str, corpus: str) -> dict:
    """Measure the time per candidate size on as much text as AdaLM's released script was timed on."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    words, texts = 0, []
    for text in read_texts(corpus):
        words += len(text.split())
        texts.append(text)
        if words >= REFERENCE_WORDS:
            break
    start = time.perf_counter()
    _, _, report = expand_vocabulary(tokenizer, texts, step=2_000, max_size=38_000, min_frequency=1, progress=False)
    seconds = time.perf_counter() - start
    sizes = len(report.curve) - 1
    return {"words": words, "sizes": sizes, "total_s": seconds, "s_per_size": seconds / sizes}


def measure_tokenizers(paths: dict[str, str], texts: list[str], repeats: int = 5) -> dict:
    """Measure speed and loading time of tokenizers in turns, so that a busy moment slows all of them."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    speeds: dict[str, list[float]] = {name: [] for name in paths}
    loads: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(repeats):
        for name, path in paths.items():
            start = time.perf_counter()
            tokenizer = AutoTokenizer.from_pretrained(path)
            loaded = time.perf_counter()
            tokenizer(texts, verbose=False)
            loads[name].append(loaded - start)
            speeds[name].append(megabytes / (time.perf_counter() - loaded))
    return {name: {"mb_per_s": max(speeds[name]), "load_s": min(loads[name])} for name in paths}


def measure_rows(number: int = 20_000) -> float:
    """Measure the seconds for new rows of 768 by the mean of pieces, in a BERT with BERT base's vocabulary."""
    generator = random.Random(0)
    pieces = {str(entry): generator.choices(range(30_522), k=generator.randint(1, 6)) for entry in range(number)}
    model = BertForMaskedLM(BertConfig(num_hidden_layers=1))
    start = time.perf_counter()
    apply_delta(model, VocabularyDelta(30_522, pieces))
    return time.perf_counter() - start


@torch.inference_mode()
def measure_loss(model, tokenizer, texts: list[str], first_new: int) -> dict:
    """Measure the masked-LM loss with 15 % of the tokens replaced by [MASK], the same for every model."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    losses, new = [], []
    for start in range(0, len(texts), 16):
        batch = tokenizer(
            texts[start : start + 16],
            truncation=True,
            max_length=128,
            padding=True,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        special = batch.pop("special_tokens_mask").bool()
        masked = (torch.rand(special.shape, generator=generator) < 0.15) & ~special
        labels = batch["input_ids"][masked]
        batch["input_ids"][masked] = tokenizer.mask_token_id
        losses.append(torch.nn.functional.cross_entropy(model(**batch).logits[masked], labels, reduction="none"))
        new.append(labels >= first_new)
    loss, is_new = torch.cat(losses), torch.cat(new)
    return {
        "all": loss.mean().item(),
        "new_entries": loss[is_new].mean().item(),
        "old_entries": loss[~is_new].mean().item(),
    }


def measure_inits(model_name: str, tokenizers: dict, delta: VocabularyDelta, texts: list[str]) -> dict:
    """Measure the loss right after the expansion for each start of new rows; `mean_resizing` is transformers' own."""
    results = {
        "base": measure_loss(
            AutoModelForMaskedLM.from_pretrained(model_name), tokenizers["base"], texts, delta.old_size
        )
    }
    for init in ("pieces", "random", "mean", "mean_resizing"):
        torch.manual_seed(0)
        model = AutoModelForMaskedLM.from_pretrained(model_name)
        if init == "mean_resizing":
            model.resize_token_embeddings(delta.new_size)
        else:
            apply_delta(model, delta, init=init)
        results[init] = measure_loss(model, tokenizers["expanded"], texts, delta.old_size)
    return results


def main() -> None:
    """Measure everything, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--corpus", required=True, help="Text, one document per line, plain or .gz.")
    parser.add_argument("--heldout", required=True, help="Text that is not in the corpus.")
    parser.add_argument("--output", required=True, help="JSON file of the results.")
    parser.add_argument("--max_size", type=int, default=80_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    logging.set_verbosity_error()

    results: dict = {"expansion": []}
    for share in (0.25, 0.5, 1.0):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as process:
            job = (args.model_name_or_path, args.corpus, share, args.max_size, args.workers)
            results["expansion"].append(process.submit(measure_expansion, *job).result())
    results["reference"] = measure_reference(args.model_name_or_path, args.corpus)

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    new_tokenizer, delta, _ = expand_vocabulary(tokenizer, read_texts(args.corpus), progress=False)
    texts = list(read_texts(args.heldout))
    with tempfile.TemporaryDirectory() as directory:
        paths = {"base": f"{directory}/base", "expanded": f"{directory}/expanded"}
        tokenizer.save_pretrained(paths["base"])
        new_tokenizer.save_pretrained(paths["expanded"])
        results["tokenizers"] = measure_tokenizers(paths, texts)
    results["apply_delta_s"] = measure_rows()
    tokenizers = {"base": tokenizer, "expanded": new_tokenizer}
    results["loss"] = measure_inits(args.model_name_or_path, tokenizers, delta, texts[:200])
    results["new_size"] = delta.new_size

    with open(args.output, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=2)
    for row in results["expansion"]:
        print(
            f"{row['words'] / 1e6:6.1f} M words: counting {row['counting_s']:.1f} s ({row['counting_cpu_s']:.1f} of a "
            f"core), rest {row['expansion_s']:.1f} s ({row['expansion_cpu_s']:.1f}), at most {row['peak_gb']:.2f} GB"
        )
    print(f"per size on {REFERENCE_WORDS:,} words: {results['reference']['s_per_size']:.2f} s")
    for name, row in results["tokenizers"].items():
        print(f"{name:>9}: {row['mb_per_s']:.2f} MB/s, loads in {row['load_s']:.3f} s")
    print(f"20,000 rows of 768: {results['apply_delta_s']:.2f} s")
    for name, row in results["loss"].items():
        print(f"{name:>14}: loss " + ", ".join(f"{kind} {loss:.3f}" for kind, loss in row.items()))


if __name__ == "__main__":
    main()
