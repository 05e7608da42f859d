"""What a published model shows of its comparison."""

import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from huggingface_hub import ModelCard
from pretended_runs import get_address, pretend
from script_runs import call_main
from tiny_models import make_masked_lm
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.comparison import publish as publication
from hf_domain.comparison.publish import complete_card, describe_row, find_model, make_results
from hf_domain.examples import publish as script
from hf_domain.safe_io import read_json, write_json
from hf_domain.training.cards import write_model_card

CARD = {"base_model": "someone/bert", "corpus": "pets", "settings": {}, "limits": "", "license_note": ""}
SECRET = "/home/someone: hf_secret"


def save_model(folder, **metadata):
    """Save a model with the card of its run."""
    make_masked_lm("bert").save_pretrained(folder)
    make_bert_tokenizer().save_pretrained(folder)
    write_model_card(folder, metadata, **CARD, example="the [MASK]", model_name=folder.name, method="dapt")
    return folder


@pytest.fixture
def compared(content, tmp_path, run_plan):
    """Run a plan whose steps leave models with cards, and one step that fails; return its folder."""
    content["tasks"]["entities"]["corpus"] = "general"
    content["methods"] = {"no_adaptation": None, "dapt": None, "tapt": {"tasks": ["animals"]}}

    def run(step, plan, folder):
        if step.kind == "held_out_loss" and step.name == "dapt-pets-on-pets":
            raise RuntimeError(SECRET)
        pretend(step, plan, folder)
        if step.kind in ("pretraining", "fine_tuning"):
            save_model(folder)

    run_plan(run)
    return tmp_path / "plan"


def get_folder(output_dir, name):
    return output_dir / "steps" / get_address(output_dir, name)


def read_card(folder):
    return ModelCard.load(folder / "README.md")


def test_card_of_an_encoder_shows_the_scores_of_its_own_model(compared):
    """A row of the report is of several encoders here, one for each corpus. The log of a failed step stays at home."""
    folder, results = find_model(compared, method="dapt", corpus="pets")
    assert folder == get_folder(compared, "dapt-pets")
    assert "animals (macro f1)" in results and "entities" not in results
    assert "| DAPT | " in results and "| TAPT | " in results and "DAPT is this model. Every pre-training" in results
    assert SECRET in (compared / "report.md").read_text() and "hf_secret" not in results
    assert "entities (entity f1)" in find_model(compared, method="dapt", corpus="general")[1]
    assert find_model(compared, method="tapt", corpus="animals")[0] == get_folder(compared, "tapt-animals")
    with pytest.raises(ValueError, match="no trained model adalm-pets; there are dapt-general, dapt-pets, tapt"):
        find_model(compared, method="adalm", corpus="pets")


def test_card_of_the_best_model_of_a_task(compared):
    folder, results = find_model(compared, task="animals")
    assert "It has the best validation score of all runs, and a test score of" in results
    complete_card(folder, name="you/animals", results=results)
    assert "# you/animals\n" in (text := read_card(folder).text) and results in text and 'model="you/animals"' in text
    with pytest.raises(ValueError, match=r"--task must be .* kept, animals, entities, but is x. Set keep_models"):
        find_model(compared, task="x")


def test_code_of_the_base_leaves_a_stock_model(compared):
    """Trusting the repository would run somebody else's code, which computes nothing here."""
    config = get_folder(compared, "dapt-pets") / "config.json"
    write_json(config, read_json(config) | {"auto_map": {"AutoConfig": "somebody/else--configuration.Config"}})
    find_model(compared, method="dapt", corpus="pets")
    assert "auto_map" not in read_json(config)


def test_facts_enter_the_card_and_the_rest_stays(tmp_path):
    folder = save_model(tmp_path / "dapt-pets", license="mit")
    before = read_card(folder).content
    complete_card(folder)
    assert read_card(folder).content == before
    complete_card(folder, name="you/first", results="| a |")
    (folder / "README.md").write_text(read_card(folder).content.replace("# you/first", "# you/first\n\nMine."))
    for _ in range(2):
        complete_card(folder, name="you/cats", license="apache-2.0", results="| b |")
        card = read_card(folder)
        expected = before.replace("dapt-pets", "you/cats").replace("license: mit", "license: apache-2.0")
        expected = expected.replace("# you/cats\n", "# you/cats\n\nMine.\n")
        assert card.content == expected.replace("## Training\n", "## Comparison\n\n| b |\n\n## Training\n")
    with pytest.raises(ValueError, match=r"but is 'Apache-2'. Did you mean apache-2.0\?"):
        complete_card(folder, license="Apache-2")


def test_script_needs_one_model(monkeypatch):
    with pytest.raises(ValueError, match=r"publish needs .* but has model_name_or_path and comparison. Name either"):
        call_main(script.main, monkeypatch, model_name_or_path="someone/a", comparison="b")


def test_script_pushes_a_folder_with_its_name_on_the_card(tmp_path, monkeypatch, capsys):
    folder, pushed = save_model(tmp_path / "adapted"), []
    monkeypatch.setattr(script, "publish", lambda *given, **options: pushed.append((given, options)) or "the commit")
    flags = {"model_name_or_path": folder, "license": "mit"}
    call_main(script.main, monkeypatch, **flags)
    assert capsys.readouterr().out == f"Ready for the Hub: {folder}\n" and not pushed
    assert "# adapted\n" in read_card(folder).text and read_card(folder).data.license == "mit"

    def fail(*_, **__):
        raise OSError("no network")

    with monkeypatch.context() as offline, pytest.raises(OSError, match="no network"):
        offline.setattr(script, "publish", fail)
        call_main(script.main, monkeypatch, repo_id="you/dogs", **flags)
    assert "# adapted\n" in read_card(folder).text
    call_main(script.main, monkeypatch, repo_id="you/cats", private="true", **flags)
    assert pushed == [((Path(folder), "you/cats"), {"private": True})] and "# you/cats\n" in read_card(folder).text
    assert capsys.readouterr().out.endswith("the commit\n")


def test_script_leaves_sentence_embeddings_to_their_library(tmp_path):
    folder = save_model(tmp_path / "pairs")
    (folder / "README.md").write_text("---\nlibrary_name: sentence-transformers\n---\n\n# pairs\n")
    with pytest.raises(ValueError, match=r"SentenceTransformer\('.*pairs'\).push_to_hub"):
        complete_card(folder)


@pytest.mark.parametrize(
    ("kind", "score", "seeds", "sentence"),
    [
        ("pretraining", None, [42], "DAPT is this model."),
        ("pretraining", None, [42, 43], "one of the 2 encoders of DAPT, with the seed 43; the row has their"),
        ("fine_tuning", 51.24, [42], "is a run of DAPT. It has the best validation score of all runs, and a test"),
    ],
)
def test_a_card_says_which_model_of_a_row_it_has(kind, score, seeds, sentence):
    step = SimpleNamespace(kind=kind, method="dapt", pretraining_seed=43)
    report = SimpleNamespace(titles={"dapt": "DAPT"}, plan={"pretraining_seeds": seeds})
    assert re.search(sentence, describe_row(SimpleNamespace(step=step, score=score), report))


def test_a_card_has_no_row_without_scores_and_names_runs_that_did_not_learn(monkeypatch):
    rows = {"DAPT": "59.2", "AdaLM": "", "majority baseline": "0.0", "vote of the nearest texts": ""}
    monkeypatch.setattr(publication, "make_score_table", lambda report: pd.DataFrame({"ner (f1)": rows}))
    for unlearned in ("", "No row learned."):
        monkeypatch.setattr(publication, "list_unlearned", lambda report, told=unlearned: told)
        before, _, after = make_results(None).partition("|  | ner (f1) |")
        assert before.strip() == (f"**{unlearned}**" if unlearned else "")
        assert [line.split("|")[1].strip() for line in after.splitlines()[2:]] == ["DAPT", "majority baseline"]
