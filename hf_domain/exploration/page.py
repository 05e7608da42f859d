"""The page that shows what a folder holds, built with Gradio; nothing leaves the machine unless it is shared."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hf_domain.command_line import describe_mistake
from hf_domain.datastore import Datastore
from hf_domain.datastore.highlight import Reading, format_section, read_passages
from hf_domain.exploration import views
from hf_domain.exploration.folders import Exploration, list_vocabularies, load_model, load_tokenizer
from hf_domain.exploration.rendering import (
    STYLE,
    format_bars,
    format_figure,
    format_gates,
    format_labels,
    format_losses,
    format_masks,
    format_mistake,
    format_note,
    format_report,
    format_sides,
    format_words,
    split_figures,
)
from hf_domain.methods.rada.explanation import explain
from hf_domain.methods.rada.passages import PassageArguments, load_datastore
from hf_domain.modeling.modeling_rada import RadaForSequenceClassification, RadaPreTrainedModel
from hf_domain.offline import TRUE
from hf_domain.prediction import predict
from hf_domain.tasks.classification import find_vote

LOOPBACK = "127.0.0.1"
PASSAGES = 5  # shown without a model, which reads as many as in its fine-tuning
# What a fine-tuned model reads: labels and lines of the inputs, and the columns of a row.
INPUTS = {
    "SequenceClassification": ((("Text", 3), ("Second text of a pair", 1)), ("text", "text_pair")),
    "TokenClassification": ((("Text", 3),), ("text",)),
    "QuestionAnswering": ((("Question", 1), ("Text", 3)), ("question", "context")),
}


def import_gradio() -> Any:
    """Import Gradio with its analytics and its check for new versions off.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the page needs Gradio, but {error.name} is missing. Run pip install gradio tantivy regex."
        ) from None
    return gradio


def make_page(found: Exploration) -> Any:
    """Build the page, with a tab for everything that can be looked at.

    Args:
        found: See `open_folder`.

    Returns:
        A `gradio.Blocks`; `launch_page` shows it.

    Raises:
        ModuleNotFoundError: Gradio is not installed.
    """
    gradio = import_gradio()
    with gradio.Blocks(title=f"hf-domain: {found.title}", analytics_enabled=False) as page:
        gradio.Markdown(f"# {found.title}")
        with gradio.Tabs():
            for title, add in list_tabs(found).items():
                with gradio.Tab(title):
                    add(gradio, found)
    return page


def launch_page(page: Any, *, port: int | None = None, share: bool = False) -> str:
    """Serve a page to this machine alone; in a Space, which says so in its environment, to its visitors.

    Args:
        page: From `make_page`.
        port: Default: the first free one from 7860.
        share: Also give it a public address, over a server of Gradio.

    Returns:
        The address, that for everybody if the page is shared. The page ends with the process: `page.block_thread()`
        waits for Ctrl+C.

    Raises:
        ValueError: The page must be shared, and `HF_DOMAIN_OFFLINE` is set.
    """
    if share and os.environ.get("HF_DOMAIN_OFFLINE", "").upper() in TRUE:
        raise ValueError(
            "--share sends the page over a server of Gradio, but HF_DOMAIN_OFFLINE=1 forbids it. Drop one."
        )
    gradio = import_gradio()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}  # the default ones come from Google
    _, local, public = page.launch(
        server_name=os.environ.get("GRADIO_SERVER_NAME", LOOPBACK),
        server_port=port,
        share=share,
        ssr_mode=False,
        footer_links=[],
        css=STYLE,
        theme=gradio.themes.Soft(primary_hue="blue", neutral_hue="gray", **fonts),
        quiet=True,
        prevent_thread_lock=True,
    )
    return public or local


def list_tabs(found: Exploration) -> dict[str, Callable[[Any, Exploration], None]]:
    """Return the tabs that fit, by their titles."""
    tabs: dict[str, Callable[[Any, Exploration], None]] = {}
    models = [*found.fine_tuned.values(), *found.encoders.values()]
    if found.report:
        tabs["Report"] = add_report
    for name in found.fine_tuned:
        title = "Prediction" if len(found.fine_tuned) == 1 else f"Prediction: {name}"
        tabs[title] = partial(add_prediction, name=name)
    if found.datastore and not any(
        isinstance(load_model(name), RadaForSequenceClassification) for name in found.fine_tuned.values()
    ):  # whose predictions show the passages
        tabs["Passages"] = add_passages
    if found.encoders:
        tabs["Fill in words"] = add_masks
    if found.tokenizers:
        tabs["Vocabulary"] = add_vocabulary
    if models:
        tabs["Neighbors"] = add_neighbors
    if len(found.encoders) > 1:
        tabs["Forgetting"] = add_losses
    if any(views.has_gates(load_model(name).config) for name in models):
        tabs["Gates"] = add_gates
    return tabs


# ------------------------------------------------------------------------------------------------------------ tabs


def add_form(gradio: Any, note: str, inputs: Sequence[Any], show: Callable[..., str]) -> None:
    """Add a note, inputs, a button, and what a function makes of the inputs.

    Args:
        show: Takes the inputs, returns HTML. A mistake of the user is shown in its place.
    """

    def answer(*values: Any) -> str:
        try:
            return show(*values)
        except Exception as error:
            if (message := describe_mistake(error)) is None:
                raise
            return format_mistake(message)

    gradio.Markdown(note)
    for each in inputs:
        each.render()
    button = gradio.Button("Read", variant="primary", elem_classes="read")
    output = gradio.HTML(padding=False)
    texts = [each.submit for each in inputs if isinstance(each, gradio.Textbox)]
    gradio.on([button.click, *texts], answer, [*inputs], output, api_visibility="private")


def make_textbox(gradio: Any, label: str, lines: int = 3, **options: Any) -> Any:
    """Make an input for a text; Enter reads it if it has one line, otherwise Shift+Enter."""
    return gradio.Textbox(label=label, lines=lines, render=False, **options)


def make_choice(gradio: Any, names: Sequence[str]) -> Any:
    """Make a choice of models; at first the first and the last, which most people compare."""
    chosen = [names[0], names[-1]] if len(names) > 1 else [*names]
    return gradio.CheckboxGroup([*names], value=chosen, label="Models", render=False, visible=len(names) > 1)


def list_chosen(found: Exploration, chosen: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Load the chosen models and their tokenizers, in the order of the page."""
    if not chosen:
        raise ValueError("there must be a model to ask, but none is chosen. Choose one.")
    models = found.encoders | found.fine_tuned
    return [(name, load_model(path), load_tokenizer(path)) for name, path in models.items() if name in chosen]


def add_report(gradio: Any, found: Exploration) -> None:
    """The report of a comparison, as it was written."""
    assert found.report is not None
    text = found.report.read_text(encoding="utf-8")
    if found.report.suffix == ".html":
        gradio.HTML(format_report(text), padding=False)
        return
    for part in split_figures(text, found.report.parent):
        gradio.Markdown(part) if isinstance(part, str) else gradio.HTML(format_figure(*part), padding=False)


def add_vocabulary(gradio: Any, found: Exploration) -> None:
    """A text in the pieces of each vocabulary."""

    def show(text: str) -> str:
        vocabularies = list_vocabularies(found.tokenizers.items())
        parts: dict[str, str] = {}
        old, before = None, None
        for name, tokenizer in vocabularies.items():
            words = views.cut_words(views.check_text(text, tokenizer), tokenizer, old or found.old_size)
            parts[name] = format_words(words, before)
            old, before = old or tokenizer, before or sum(map(len, words))
        is_shared = len(parts) == 1 < len(found.tokenizers)
        return format_sides(parts) + (format_note("All models have this vocabulary.") if is_shared else "")

    note = "Each box is a word. Orange words are cut into pieces; green pieces are new in the expanded vocabulary."
    add_form(gradio, note, [make_textbox(gradio, "Text")], show)


def add_masks(gradio: Any, found: Exploration) -> None:
    """The likeliest words in the place of a mask, for several models side by side."""

    def show(text: str, chosen: list[str]) -> str:
        models = list_chosen(found, chosen)
        return format_sides({name: format_masks(views.fill_masks(text, *model)) for name, *model in models})

    text = make_textbox(gradio, "Text", 2, placeholder=f"The cells were treated with {views.MASKS[0]} acid.")
    note = f"Write `{views.MASKS[0]}` for a word that the models fill in."
    add_form(gradio, note, [text, make_choice(gradio, [*found.encoders])], show)


def add_neighbors(gradio: Any, found: Exploration) -> None:
    """The entries of the vocabulary with the nearest embeddings."""

    def show(word: str, chosen: list[str]) -> str:
        models = list_chosen(found, chosen)
        parts = {name: format_bars(views.find_neighbors(word, *model), ".2f") for name, *model in models}
        for name, _, tokenizer in models:
            if len(tokens := views.tokenize_word(word, tokenizer)) > 1:
                pieces = " ".join(
                    views.name_token(number, tokenizer) for number in tokenizer.convert_tokens_to_ids(tokens)
                )
                reason = f"The vocabulary lacks this word, so the mean of its pieces is compared: {pieces}."
                parts[name] = format_note(reason) + parts[name]
        return format_sides(parts)

    note = "Entries of the vocabulary whose embeddings are nearest to a word, by the cosine."
    names = [*found.encoders, *found.fine_tuned]
    add_form(gradio, note, [make_textbox(gradio, "Word", 1), make_choice(gradio, names)], show)


def add_losses(gradio: Any, found: Exploration) -> None:
    """What each model, or each checkpoint of a run, forgot of a text or gained on it."""

    def show(text: str, chosen: list[str]) -> str:
        models = list_chosen(found, chosen)
        own = models[-1][2].get_vocab()  # an encoder before its vocabulary was expanded has other tokens
        same = [model for model in models if model[2].get_vocab() == own]
        losses = {name: views.measure_losses(text, *model) for name, *model in same}
        left_out = [name for name, *_ in models if name not in losses]
        note = f"Left out, because their tokens differ: {', '.join(left_out)}."
        return format_losses(losses) + (format_note(note) if left_out else "")

    names = [*found.encoders]
    choice = gradio.CheckboxGroup(names, value=names, label="Models", render=False)
    note = (
        f"Loss of a text of up to {views.MOST_ROWS} tokens, each masked alone, in nats. Paste general text to see what "
        "a model forgot, text of the domain to see what it gained."
    )
    add_form(gradio, note, [make_textbox(gradio, "Text"), choice], show)


def add_gates(gradio: Any, found: Exploration) -> None:
    """What the gates of an exBERT or a G-MAP let through."""
    models = found.encoders | found.fine_tuned
    names = [name for name, path in models.items() if views.has_gates(load_model(path).config)]

    def show(text: str, pair: str, chosen: list[str]) -> str:
        texts = [text, pair] if pair.strip() else [text]
        models = list_chosen(found, chosen)
        return format_sides({name: format_gates(views.measure_gates(texts, *model)) for name, *model in models})

    note = "The share of the added module in each layer, from 0 (not read) to 1 (only this is read)."
    inputs = [make_textbox(gradio, "Text"), make_textbox(gradio, "Second text of a pair", 1)]
    add_form(gradio, note, [*inputs, make_choice(gradio, names)], show)


# ------------------------------------------------------------------------------------- predictions and passages


def add_prediction(gradio: Any, found: Exploration, name: str) -> None:
    """What a fine-tuned model says of a text, and the passages that it reads."""
    path = found.fine_tuned[name]
    model, tokenizer = load_model(path), load_tokenizer(path)
    kind = type(model).__name__.partition("For")[2]
    labels, columns = INPUTS[kind]
    has_vote = find_vote(model.config.to_dict(), type(model).__name__) is not None
    model.config.nearest_vote = None  # the page has no labeled texts

    def show(*texts: str) -> str:
        texts = tuple(text for text in texts if text.strip()) or ("",)
        views.check_text(" ".join(texts), tokenizer, model)
        if isinstance(model, RadaForSequenceClassification) and found.datastore:
            return format_section(read_with(model, tokenizer, found.datastore, texts))
        row = dict(zip(columns, texts, strict=False))
        row = predict(model, [row], tokenizer, datastore=found.datastore, progress=False)[0]
        if "tokens" in row and None in row["prediction"]:
            raise ValueError("the model must read all words, but not all of this text fit in. Shorten it.")
        return format_labels(row)

    note = "The labels that the model predicts, with their probabilities."
    if has_vote:
        note += (
            " The vote of the nearest training texts is left out, because it needs these texts: `hf-domain predict "
            "--labeled_file` has it."
        )
    if isinstance(model, RadaForSequenceClassification) and found.datastore:
        note += (
            " Below them are the passages that it reads, in the order of their BM25 scores. Marked words also occur in "
            "the text; in the passage that the model chose, the color is the weight of a word."
        )
    add_form(gradio, note, [make_textbox(gradio, *each) for each in labels], show)


def add_passages(gradio: Any, found: Exploration) -> None:
    """The passages that a datastore finds for a text, as a RADA chooses them if there is one."""
    folder = str(found.datastore)
    path = next(iter([*found.fine_tuned.values(), *reversed(found.encoders.values())]), None)

    def show(text: str, pair: str) -> str:
        texts = [each for each in (text, pair) if each.strip()]
        model = None if path is None else load_model(path)
        if path is not None and isinstance(model, RadaPreTrainedModel):
            tokenizer = load_tokenizer(path)
            views.check_text(" ".join(texts), tokenizer, model)
            return format_section(read_with(model, tokenizer, folder, texts))
        datastore = Datastore.load(folder)
        views.check_text(" ".join(texts), datastore.tokenizer)
        return format_section(read_passages(datastore, " ".join(texts), PASSAGES))

    note = "Passages of the datastore by their BM25 scores; the words that they share with the text are marked."
    inputs = [make_textbox(gradio, "Text"), make_textbox(gradio, "Second text of a pair", 1)]
    add_form(gradio, note, inputs, show)


def read_with(model: Any, tokenizer: Any, folder: str, texts: Sequence[str]) -> Reading:
    """Return the passages of a text with what a RADA makes of them."""
    datastore = load_datastore(PassageArguments(folder), model, tokenizer, None)
    return read_passages(datastore, " ".join(texts), **vars(explain(model, tokenizer, datastore, texts)))
