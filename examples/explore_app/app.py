"""A local page that shows what an adapted or fine-tuned model, a vocabulary or a datastore does with a text.

    python examples/explore_app/app.py --model task --encoder bert-base-uncased --datastore datastore

It uses hf_domain's public functions alone, so copy it and change it. Nothing leaves this machine: the page is on the
loopback address, loads no font and sends no statistics.
"""

import argparse
import html
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, pipeline

from hf_domain import predict
from hf_domain.datastore import Datastore

LOOPBACK = "127.0.0.1"
MASK = "[MASK]"  # what a user writes for the mask token of any tokenizer
MOST_TOKENS = 512  # a longer text is refused, so that nothing is cut off unseen
STYLE = """
.gradio-container main { max-width: 68rem; margin: 0 auto !important; overflow-wrap: anywhere }
.piece { padding: 0 .2em; margin-right: 2px; border-radius: 4px; background: rgba(130, 140, 160, .16) }
.piece.new { background: rgba(89, 161, 79, .42) }
.word { display: inline-block; margin-right: .5em; line-height: 1.8 }
.bar { padding: .15rem .5rem; margin: 3px 0; border-radius: 4px; background:
  linear-gradient(90deg, rgba(78, 121, 167, .32) var(--share), rgba(130, 140, 160, .1) var(--share)) }
.tag { font-size: .75em; padding: 0 .35em; border-radius: 4px; background: rgba(78, 121, 167, .35) }
.mistake { padding: .6rem .9rem; border-left: 4px solid #e15759; background: rgba(225, 87, 89, .12) }
"""


class Piece(NamedTuple):
    """A token of a text, as it is written there."""

    text: str
    is_new: bool
    """Whether the old vocabulary lacks the token."""


def check_text(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a text without blanks around it.

    Raises:
        ValueError: The text is empty or too long.
    """
    if not (text := text.strip()):
        raise ValueError("There must be a text to read, but it is empty. Write or paste one.")
    if (count := len(tokenizer(text, verbose=False)["input_ids"])) > MOST_TOKENS:
        raise ValueError(f"A text must have at most {MOST_TOKENS} tokens, but this one has {count:,}. Shorten it.")
    return text


def cut_words(
    text: str, tokenizer: PreTrainedTokenizerBase, old: PreTrainedTokenizerBase | None = None
) -> list[list[Piece]]:
    """Return the pieces of each word of a text; a piece is new if the `old` tokenizer lacks it."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    known = None if old is None else old.get_vocab()
    words: list[list[Piece]] = []
    last = None
    for token, (start, end), word in zip(
        encoding.tokens(), encoding["offset_mapping"], encoding.word_ids(), strict=True
    ):
        if word is None or word != last:
            words.append([])
        shown = token if token == tokenizer.unk_token else text[start:end].strip()
        words[-1].append(Piece(shown, known is not None and token not in known))
        last = word
    return words


def show_words(text: str, tokenizers: dict[str, PreTrainedTokenizerBase]) -> str:
    """Show a text in the pieces of each vocabulary; of later ones, the pieces that the first lacks are marked."""
    parts, old = [], None
    for name, tokenizer in tokenizers.items():
        words = cut_words(check_text(text, tokenizer), tokenizer, old)
        old = old or tokenizer
        shown = "".join(
            '<span class="word">{}</span>'.format(
                "".join(
                    f'<span class="piece{" new" * piece.is_new}">{html.escape(piece.text)}</span>' for piece in word
                )
            )
            for word in words
        )
        title = f"{name}: {sum(map(len, words))} pieces for {len(words)} words"
        parts.append(f"<h4>{html.escape(title)}</h4><div>{shown}</div>")
    return "".join(parts)


def show_bars(rows: Sequence[tuple[str, float]]) -> str:
    """Show shares as bars behind their labels."""
    return "".join(
        f'<div class="bar" style="--share: {100 * share:.1f}%">{html.escape(label)} {share:.1%}</div>'
        for label, share in rows
    )


def show_prediction(row: dict[str, Any]) -> str:
    """Show a row of `predict`: labels or a value, the tags of words, or an answer."""
    prediction, probabilities = row["prediction"], row.get("probabilities")
    if isinstance(probabilities, dict):
        ranked = sorted(probabilities.items(), key=lambda item: -item[1])
        several = prediction if isinstance(prediction, list) else []  # each label has a threshold of its own
        return show_bars([(f"{label} (predicted)" if label in several else label, share) for label, share in ranked])
    if "tokens" in row:
        if None in prediction:
            raise ValueError("The model must read all words, but not all of this text fit in. Shorten it.")
        tagged = [
            html.escape(word)
            if tag == "O"
            else f'<b>{html.escape(word)} <span class="tag">{html.escape(str(tag))}</span></b>'
            for word, tag in zip(row["tokens"], prediction, strict=True)
        ]
        return " ".join(tagged)
    if isinstance(probabilities, float):
        return show_bars([(prediction or "no answer", probabilities)])
    return f"<b>{html.escape(f'{prediction:.3f}' if isinstance(prediction, float) else str(prediction))}</b>"


def show_passages(text: str, datastore: Datastore, count: int = 5) -> str:
    """Show the passages that a datastore finds for a text, best first, with their BM25 scores."""
    ((ids, scores),) = datastore.search([check_text(text, datastore.tokenizer)], count)
    if not ids:
        return "<p>No passage has a word in common with this text.</p>"
    found = zip(datastore.passages.select(ids), scores, strict=True)
    items = [
        f"<li><small>document {html.escape(str(row['document_id']))}, score {score:.2f}</small><br>"
        f"{html.escape(row['text'])}</li>"
        for row, score in found
    ]
    return f"<ol>{''.join(items)}</ol>"


def show_fillers(text: str, fillers: dict[str, Any]) -> str:
    """Show the likeliest tokens for the one mask of a text, by each fill-mask pipeline."""
    parts = []
    for name, fill in fillers.items():
        own = check_text(text, fill.tokenizer).replace(MASK, fill.tokenizer.mask_token)
        if own.count(fill.tokenizer.mask_token) != 1:
            raise ValueError(f"One word must be written as {MASK}, but the text has none or several. Mask one.")
        rows = [(found["token_str"].strip(), found["score"]) for found in fill(own)]
        parts.append(f"<h4>{html.escape(name)}</h4>{show_bars(rows)}")
    return "".join(parts)


# ------------------------------------------------------------------------------------------------------------ the page


class Form(NamedTuple):
    """A tab: labeled inputs, and the function that makes HTML of them."""

    labels: tuple[str, ...]
    show: Callable[..., str]


def list_forms(
    model: str | None, encoder: str | None, datastore: str | None, labeled_file: str | None = None
) -> dict[str, Form]:
    """Return the forms that fit what is given, by the titles of their tabs.

    Args:
        model: Folder or name on the Hub of an encoder, a fine-tuned model, or a vocabulary alone.
        encoder: The encoder before its adaptation.
        datastore: Folder of a datastore.
        labeled_file: Labeled texts that vote with the model.
    """
    forms: dict[str, Form] = {}
    names = {"before": encoder, "after": model}
    names = {title: name for title, name in names.items() if name}
    tokenizers = {title: AutoTokenizer.from_pretrained(name) for title, name in names.items()}
    is_vocabulary = model is not None and os.path.isdir(model) and "config.json" not in os.listdir(model)
    config = None if model is None or is_vocabulary else AutoConfig.from_pretrained(model)
    architecture = "" if config is None else (config.architectures or [""])[0]
    if model and architecture and not architecture.endswith(("ForMaskedLM", "Model")):
        is_reader = architecture.endswith("ForQuestionAnswering")
        reads_passages = any(hasattr(config, name) for name in ("num_passages", "appended_passage_length"))
        options = {"datastore": datastore if reads_passages else None, "labeled_texts": labeled_file}

        def show(first: str, second: str) -> str:
            check_text(f"{first} {second}", tokenizers["after"])
            if is_reader:
                row = {"question": first, "context": second}
            else:
                row = {"text": first} | ({"text_pair": second} if second.strip() else {})
            return show_prediction(predict(model, [row], **options, progress=False)[0])

        labels = ("Question", "Text") if is_reader else ("Text", "Second text of a pair")
        forms["Prediction"] = Form(labels, show)
    if architecture.endswith("ForMaskedLM"):
        fillers = {title: pipeline("fill-mask", name) for title, name in names.items()}
        forms["Fill in words"] = Form((f"Text with {MASK}",), lambda text: show_fillers(text, fillers))
    if tokenizers:
        forms["Vocabulary"] = Form(("Text",), lambda text: show_words(text, tokenizers))
    if datastore:
        store = Datastore.load(datastore)
        forms["Passages"] = Form(("Text",), lambda text: show_passages(text, store))
    if not forms:
        raise ValueError("The page needs something to show, but nothing is given. Give --model or --datastore.")
    return forms


def answer(show: Callable[..., str], *values: str) -> str:
    """Return what a form shows; a user's mistake becomes a message."""
    try:
        return show(*values)
    except (ValueError, OSError) as error:
        return f'<p class="mistake" role="alert">{html.escape(str(error))}</p>'


def make_page(forms: dict[str, Form]) -> Any:
    """Return a `gradio.Blocks` with a tab for each form."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio

    with gradio.Blocks(title="hf-domain", analytics_enabled=False) as page, gradio.Tabs():
        for title, form in forms.items():
            with gradio.Tab(title):
                boxes = [gradio.Textbox(label=label, lines=3) for label in form.labels]
                button = gradio.Button("Read", variant="primary")
                output = gradio.HTML(padding=False)
                # A default binds the form of this turn of the loop.
                button.click(
                    lambda *values, show=form.show: answer(show, *values), boxes, output, api_visibility="private"
                )
    return page


def launch_page(page: Any, port: int | None = None) -> str:
    """Serve a page to this machine alone, and return its address. It ends with the process."""
    import gradio

    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}  # the default ones come from Google
    _, address, _ = page.launch(
        server_name=LOOPBACK,
        server_port=port,
        share=False,
        ssr_mode=False,
        footer_links=[],
        css=STYLE,
        theme=gradio.themes.Soft(**fonts),
        quiet=True,
        prevent_thread_lock=True,
    )
    return address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="adapted encoder, fine-tuned model or expanded vocabulary")
    parser.add_argument("--encoder", help="the encoder before its adaptation")
    parser.add_argument("--datastore", help="folder of the passages to search")
    parser.add_argument("--labeled_file", help="labeled texts of a model that was trained with a vote of the nearest")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    args = parser.parse_args()
    page = make_page(list_forms(args.model, args.encoder, args.datastore, args.labeled_file))
    print(f"Open {launch_page(page, args.port)} in a browser; Ctrl+C stops the page.", flush=True)
    page.block_thread()


if __name__ == "__main__":
    main()
