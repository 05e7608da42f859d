"""A folder is taken for what it is."""

import json

import pytest
from tiny_models import make_masked_lm
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.exploration.folders import list_vocabularies, load_model, open_folder


def open_made(made, name, **options):
    return open_folder(str(made / name), **{option: str(made / value) for option, value in options.items()})


def test_encoder_with_its_checkpoints(made):
    found = open_made(made, "adapted")
    assert [*found.encoders] == ["before: encoder", "step 3", "step 20", "after: adapted"]
    assert [*found.tokenizers] == ["before: encoder", "after: adapted"]
    assert not found.fine_tuned and found.datastore is None and found.report is None
    assert len(list_vocabularies(found.tokenizers.items())) == 1
    assert type(load_model(found.encoders["step 3"])).__name__ == "BertForMaskedLM"


def test_encoder_whose_start_is_known_by_a_digest_alone(made, tmp_path):
    make_masked_lm("bert").save_pretrained(tmp_path)
    make_bert_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "_run.json").write_text(json.dumps({"options": {"model_name_or_path": "sha256:00"}}))
    assert len(open_folder(str(tmp_path)).encoders) == 1
    found = open_folder(str(tmp_path), encoder=str(made / "encoder"))
    assert [*found.encoders] == ["before: encoder", f"after: {tmp_path.name}"]


def test_encoder_whose_start_is_gone(made, tmp_path, caplog):
    make_masked_lm("bert").save_pretrained(tmp_path)
    make_bert_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "_run.json").write_text(json.dumps({"options": {"model_name_or_path": "nobody/nothing"}}))
    assert len(open_folder(str(tmp_path)).encoders) == 1
    assert "nobody/nothing, the encoder before adaptation, cannot be loaded" in caplog.text


def test_vocabulary(made):
    found = open_made(made, "vocabulary")
    assert not found.encoders and found.old_size == len(make_bert_tokenizer())
    found = open_made(made, "vocabulary", encoder="encoder")
    assert found.old_size is None and len(list_vocabularies(found.tokenizers.items())) == 2


@pytest.mark.parametrize("name", ["classifier", "tagger", "answerer", "rada"])
def test_fine_tuned_models(made, name):
    found = open_made(made, name, datastore="datastore")
    assert found.fine_tuned == {name: str(made / name)} and not found.encoders
    assert found.datastore == str(made / "datastore")


def test_datastore(made):
    assert open_made(made, "datastore").datastore == str(made / "datastore")


@pytest.mark.parametrize("name", ["mine/plan.yaml", "mine", "mine/plan"])
def test_comparison_by_its_plan_or_its_folders(comparison, name):
    found = open_folder(str(comparison.parent / name))
    assert [*found.encoders] == ["before: encoder", "dapt-pets"]
    assert [*found.fine_tuned] == ["animals"]
    assert found.report.read_text() == "<p>the report</p>"
    assert all(
        type(load_model(path)).__name__.startswith("Bert")
        for path in [*found.encoders.values(), *found.fine_tuned.values()]
    )


def test_comparison_without_a_page_shows_its_text(comparison):
    (comparison / "plan" / "report.html").unlink()
    with pytest.raises(FileNotFoundError, match=r"must have a report\.html or a report\.md.* Run hf-domain compare"):
        open_folder(str(comparison))
    (comparison / "plan" / "report.md").write_text("# A comparison")
    assert open_folder(str(comparison)).report.read_text() == "# A comparison"


def test_comparison_of_an_earlier_version_shows_its_report(comparison, caplog):
    file = comparison / "plan" / "plan.json"
    plan = json.loads(file.read_text())
    del plan["steps"]
    file.write_text(json.dumps(plan))
    found = open_folder(str(comparison))
    assert found.report.is_file() and not found.encoders and not found.fine_tuned and not found.tokenizers
    assert "so the page shows only the report" in caplog.text


def test_comparison_whose_encoder_is_elsewhere(comparison, caplog):
    file = comparison / "plan" / "plan.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder": "nowhere"}))
    found = open_folder(str(comparison))
    assert [*found.encoders] == ["dapt-pets"] and found.report.is_file()
    assert "nowhere, the encoder before adaptation, cannot be loaded" in caplog.text


def test_folders_with_nothing_to_look_at(made, tmp_path):
    with pytest.raises(ValueError, match=r"must be a model, a vocabulary, a datastore or a comparison in .*empty"):
        open_made(made, "empty")
    with pytest.raises(ValueError, match="nowhere/at/all is neither"):
        open_folder("nowhere/at/all")
    with pytest.raises(
        FileNotFoundError, match="folder or a name on the Hub, but there is no folder nowhere, and the Hub"
    ):
        open_folder("nowhere")
    with pytest.raises(ValueError, match="empty"):
        open_made(made, "adapted", encoder="empty")
    make_masked_lm("bert").base_model.save_pretrained(tmp_path)
    make_bert_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"ForMaskedLM.* is a BertModel"):
        open_folder(str(tmp_path))
