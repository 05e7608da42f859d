import shutil
from types import SimpleNamespace

import pytest
from datasets import Dataset, load_dataset
from huggingface_hub import DatasetCard, HfApi
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import Datastore, build_datastore, load_from_hub, push_to_hub
from hf_domain.datastore.hub import export_datastore
from hf_domain.safe_io import read_json, write_json

pytest.importorskip("tantivy")

TEXTS = [f"{SENTENCES[number % 4]} number{number}" for number in range(40)]


@pytest.fixture
def datastore(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_domain.datastore.build.COMMIT_CHARACTERS", 900)
    documents = Dataset.from_dict({"text": TEXTS})
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    return build_datastore(documents, tmp_path / "store", tokenizer)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """What was uploaded, as a folder."""

    def create_repo(self, repo_id, **options):
        assert options["repo_type"] == "dataset"
        return SimpleNamespace(repo_id=f"someone/{repo_id}")

    def upload_folder(self, *, repo_id, repo_type, folder_path, delete_patterns, **options):
        assert (repo_id, repo_type, delete_patterns) == ("someone/cs", "dataset", "data/*")
        shutil.copytree(folder_path, tmp_path / "repository")
        return SimpleNamespace(commit_url="https://hub/commit")

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return tmp_path / "repository"


def test_published_datastore_is_a_dataset_and_comes_back(tmp_path, datastore, repository):
    assert push_to_hub(datastore, "cs", license="cc-by-4.0") == "https://hub/commit"
    card = DatasetCard.load(repository / "README.md")
    assert card.data.license == "cc-by-4.0" and "40 passages of at most 256 tokens" in card.text
    assert 'load_from_hub("someone/cs"' in card.text
    dataset = load_dataset(str(repository), split="train")
    assert list(dataset) == list(datastore.passages) and dataset.features == datastore.passages.features

    again = load_from_hub(str(repository), tmp_path / "again")
    assert again.fingerprint == datastore.fingerprint and list(again.passages) == list(datastore.passages)
    assert again.search(TEXTS, 5)[3][0] == datastore.search(TEXTS, 5)[3][0]
    assert again.add(Dataset.from_dict({"text": [TEXTS[0], "new"]})) == 1
    assert again.passages["document_id"][-1:] == ["41"]
    Datastore.load(tmp_path / "again").verify()


def test_deleted_text_stays_at_home(tmp_path, datastore):
    datastore.delete([3])
    export_datastore(datastore, tmp_path / "export")
    again = load_from_hub(str(tmp_path / "export"), tmp_path / "again", analyzer="standard")
    assert again.passages[3] == {"id": 3, "document_id": "", "text": "", "input_ids": []}
    assert again.passages[4] == datastore.passages[4] and len(again) == 39
    assert again.search(["number3 number4"], 5)[0][0] == [4] and again.manifest.analyzer == "standard"
    assert again.add(Dataset.from_dict({"text": [TEXTS[3]]})) == 1


def test_what_is_not_a_datastore_is_reported(tmp_path, datastore):
    export_datastore(datastore, tmp_path / "export")
    with pytest.raises(FileExistsError, match="store exists"):
        load_from_hub(str(tmp_path / "export"), datastore.folder)
    manifest = read_json(tmp_path / "export" / "datastore.json")
    write_json(tmp_path / "export" / "datastore.json", manifest | {"fingerprint": "other"})
    with pytest.raises(ValueError, match="must be those that its datastore"):
        load_from_hub(str(tmp_path / "export"), tmp_path / "again")
    (tmp_path / "export" / "datastore.json").unlink()
    with pytest.raises(FileNotFoundError, match="must be a datastore, but has no"):
        load_from_hub(str(tmp_path / "export"), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_interrupted_build_beside_it_stays(tmp_path, datastore):
    export_datastore(datastore, tmp_path / "export")
    shutil.copytree(datastore.folder, tmp_path / "again.unfinished")
    before = sorted(path.name for path in tmp_path.iterdir())
    load_from_hub(str(tmp_path / "export"), tmp_path / "again")
    Datastore.load(tmp_path / "again.unfinished").verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "again"])
    assert (tmp_path / "again").stat().st_mode == datastore.folder.stat().st_mode
