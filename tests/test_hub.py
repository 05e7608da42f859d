"""Publishing end to end: the real client, a server on the loopback, and processes that load what was published."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import forked_python
import pytest
from hub_server import TOKEN, Fault, HubServer, Repository
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import close_session
from remote_encoder import write_remote_encoder
from script_runs import save_tiny_bert, write_jsonl
from transformers import AutoTokenizer

from hf_domain import RadaForMaskedLM, VarMAEForMaskedLM
from hf_domain.examples import run_mlm
from hf_domain.hub import publish
from hf_domain.training.cards import write_model_card

SENTENCES = ["the small cat sat on the mat", "a dog ran over the hill"] * 40
LOAD = """
import json, sys
sys.modules["hf_domain"] = None  # the package is not there
from transformers import AutoModelForMaskedLM, AutoTokenizer
output, name, *revisions = sys.argv[1:]
loaded = []
for revision in revisions:
    model = AutoModelForMaskedLM.from_pretrained(name, revision=revision, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    logits = model(**tokenizer("the cat", return_tensors="pt")).logits
    loaded.append([type(model).__name__, round(float(logits.double().sum()), 3)])
open(output, "w").write(json.dumps(loaded))
"""


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


def run_process(hub, tmp_path, code, *arguments, token=TOKEN):
    environment = {**os.environ, **hub.get_environment(tmp_path / "hub_home", token), "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return forked_python.run(command, env=environment, cwd=tmp_path)


def load_everywhere(hub, tmp_path, name, revisions):
    """Load revisions in a process without the package; returns what each of them is and computes."""
    result = run_process(hub, tmp_path, LOAD, tmp_path / "loaded.json", name, *revisions)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((tmp_path / "loaded.json").read_text())


@pytest.fixture
def folder(tmp_path):
    """A folder that is ready to be published."""
    encoder, folder = save_tiny_bert(tmp_path / "encoder", SENTENCES), tmp_path / "adapted"
    VarMAEForMaskedLM.from_backbone(encoder).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    write_model_card(
        folder,
        {"license": "apache-2.0"},
        method="varmae",
        model_name="tester/cats",
        base_model="encoder",
        corpus="sentences on cats",
        settings={"tokens": "1,000"},
        limits="Only cats.",
        license_note="Nothing to add.",
        example="the [MASK] sat",
    )
    return folder


def run_script(hub, tmp_path, script="run_mlm", **flags):
    """Run a script as the command line does, with its token on it and a name in HF_TOKEN that may not write."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES))
    code = f"import runpy, sys; sys.argv[0] = '{script}.py'; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    flags = {"train_file": tmp_path / "corpus.txt", "max_steps": 6, "save_steps": 2} | flags
    flags |= {"model_name_or_path": encoder, "hub_token": TOKEN}
    flags |= {"output_dir": tmp_path / "cats", "max_seq_length": 16, "per_device_train_batch_size": 4}
    flags |= {"report_to": "none"}
    flags |= {"push_to_hub": True, "hub_private_repo": True, "do_train": True, "use_cpu": True}
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    result = run_process(
        hub, tmp_path, code, Path(run_mlm.__file__).with_name(f"{script}.py"), *arguments, token="hf_reader"
    )
    assert TOKEN not in result.stdout + result.stderr
    return result


def run_training(hub, tmp_path, **flags):
    """Run run_mlm.py and return what it published."""
    result = run_script(hub, tmp_path, **flags)
    assert result.returncode == 0, result.stderr[-3000:]
    repository = hub.repositories["tester/cats"]
    assert repository.private
    for _, files in repository.commits:
        assert not any(text.encode() in b"".join(files.values()) for text in (TOKEN, str(tmp_path)))
        assert not any(name.endswith("training_args.bin") for name in files)
    return repository


@pytest.mark.commands
def test_every_commit_of_a_run_loads_without_the_package(hub, tmp_path):
    repository = run_training(hub, tmp_path, method="varmae", hub_strategy="checkpoint")
    assert {"last-checkpoint/optimizer.pt", "model.safetensors", "README.md"} <= repository.commits[-1][1].keys()
    card = repository.commits[-1][1]["README.md"].decode()
    assert "- **Base model:** encoder" in card and 'model="tester/cats"' in card
    cards = [text for _, files in repository.commits for name, text in files.items() if name.endswith("README.md")]
    assert not any("more information needed" in text.decode().lower() for text in cards)
    revisions = [sha for sha, files in repository.commits if "config.json" in files]
    assert len(revisions) >= 3
    loaded = load_everywhere(hub, tmp_path, "tester/cats", revisions)
    assert {name for name, _ in loaded} == {"VarMAEForMaskedLM"}
    assert len({total for _, total in loaded}) >= 2  # states of training, not the last one again and again


TASKS = {
    "classification": {"text": "the cat sat", "label": "a"},
    "ner": {"tokens": ["the", "cat"], "tags": ["O", "B-X"]},
    "qa": {"id": "1", "question": "who sat", "context": "the cat", "answers": {"text": ["cat"], "answer_start": [4]}},
}


@pytest.mark.parametrize("task", [pytest.param(task, marks=pytest.mark.commands) for task in TASKS])
def test_card_of_a_task_has_no_template_sentence(hub, tmp_path, task):
    varied = {"classification": "label", "qa": "id"}.get(task, "number")
    rows = [TASKS[task] | {varied: str(number)} for number in range(16)]
    flags = {"train_file": write_jsonl(tmp_path / "train.jsonl", rows), "save_strategy": "no", "max_steps": 1}
    flags |= {"doc_stride": 4} if task == "qa" else {}
    result = run_script(hub, tmp_path, script=f"run_{task}", **flags)
    assert result.returncode == 0, result.stderr[-3000:]
    commits = hub.repositories["tester/cats"].commits
    cards = [files["README.md"].decode() for _, files in commits if "README.md" in files]
    assert f"hf-domain {task}" in cards[-1] and "- **Base model:** encoder" in cards[-1]
    assert not any(text in each.lower() for each in cards for text in ("more information", "generated automatically"))
    assert not any(str(tmp_path) in each or TOKEN in each for each in cards)


@pytest.mark.commands
@pytest.mark.parametrize(("method", "model"), [("lora", "BertForMaskedLM"), ("exbert_adapter", "ExBertForMaskedLM")])
def test_run_of_an_adapter_pushes_the_merged_model_alone(hub, tmp_path, method, model):
    # An adapter that an earlier run left would be put on the merged weights.
    left = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"", "NOTES.md": b"mine"}
    hub.repositories["tester/cats"] = Repository(True, [("0" * 40, left)])
    repository = run_training(hub, tmp_path, method=method, hub_strategy="every_save")
    (_, (sha, files)) = repository.commits
    assert not any(name.startswith("adapter_") for name in files)
    assert {"model.safetensors", "README.md", "NOTES.md"} <= files.keys()
    assert (tmp_path / "cats" / "adapter" / "adapter_config.json").exists() is (method == "exbert_adapter")
    assert load_everywhere(hub, tmp_path, "tester/cats", [sha])[0][0] == model


@pytest.mark.commands
def test_refused_push_leaves_what_the_run_measured(hub, tmp_path):
    hub.faults.append(Fault("POST", "/commit/", 403, times=100))
    (tmp_path / "held_out.txt").write_text("a cat sat\nanother cat sat on a mat\n" * 20)
    data = {"validation_file": tmp_path / "held_out.txt", "do_eval": True}
    result = run_script(hub, tmp_path, method="dapt", hub_strategy="end", **data)
    assert result.returncode != 0
    assert "(403)" in result.stderr
    assert json.loads((tmp_path / "cats" / "all_results.json").read_text())["eval_loss"] > 0
    assert (tmp_path / "cats" / "model.safetensors").is_file()


@pytest.mark.commands
def test_repository_that_cannot_be_created_costs_no_training(hub, tmp_path):
    """Also not that of an adapter, which is pushed only at the end."""
    hub.faults.append(Fault("POST", "/api/repos/create", 403, times=100))
    result = run_script(hub, tmp_path, method="lora")
    assert result.returncode != 0 and "/api/repos/create" in result.stderr
    assert not (tmp_path / "cats" / "model.safetensors").exists()


@pytest.fixture
def connect(hub, monkeypatch):
    """Let this process's client speak with the server, by the given token."""
    monkeypatch.setattr("hf_domain.hub.RETRY_SECONDS", (0, 0))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    endpoint = hub.get_environment("")["HF_ENDPOINT"]
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)  # made of it at import
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # a shared client keeps its address
    close_session()  # the open one was made to be offline
    yield
    close_session()


@pytest.mark.usefixtures("connect")
def test_publish_is_one_commit_that_loads_without_the_package(hub, tmp_path, folder):
    address = publish(folder, "tester/cats", private=True, token=TOKEN)
    repository = hub.repositories["tester/cats"]
    assert repository.private
    ((_, first), (sha, files)) = repository.commits
    assert not first
    assert address.endswith(sha)
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "modeling_varmae.py"} <= files.keys()
    assert not any(name.endswith((".bin", ".pt", ".lock")) for name in files)
    assert {token for method, _, token in hub.requests if method == "POST"} == {f"Bearer {TOKEN}"}
    assert load_everywhere(hub, tmp_path, "tester/cats", ["main"])[0][0] == "VarMAEForMaskedLM"
    with pytest.raises(RepositoryNotFoundError):
        HfApi(token="hf_other").model_info("tester/cats")
    assert HfApi(token=TOKEN).model_info("tester/cats").sha == sha
    publish(folder, "tester/cats", token=TOKEN)  # 409: it exists
    assert len(repository.commits) in (2, 3)  # the client leaves out a commit without a change
    assert repository.commits[-1][1] == files


@pytest.mark.commands
@pytest.mark.usefixtures("connect")
def test_nested_methods_load_without_the_package(hub, tmp_path, folder):
    publish(folder, "tester/cats", token=TOKEN)
    nested = tmp_path / "nested"
    shutil.copytree(folder, nested)
    model = RadaForMaskedLM.from_backbone(VarMAEForMaskedLM.from_pretrained(folder))
    model.save_pretrained(nested)
    publish(nested, "tester/cats", token=TOKEN)
    (first, plain), (second, both) = hub.repositories["tester/cats"].commits[1:]
    assert "modeling_varmae.py" in plain and "modeling_rada.py" not in plain
    assert {"modeling_varmae.py", "modeling_rada.py"} <= both.keys()
    loaded = load_everywhere(hub, tmp_path, "tester/cats", [first, second])
    assert [name for name, _ in loaded] == ["VarMAEForMaskedLM", "RadaForMaskedLM"]

    model.push_to_hub("tester/pushed", token=TOKEN)
    model.config.save_pretrained(tmp_path / "config", push_to_hub=True, repo_id="tester/config", token=TOKEN)
    pushed, config = (hub.repositories[f"tester/{name}"].commits[-1][1] for name in ("pushed", "config"))
    code = {name: text for name, text in both.items() if name.endswith(".py")}
    assert {name: text for name, text in pushed.items() if name.endswith(".py")} == code
    assert {"configuration_rada.py", "configuration_varmae.py"} <= config.keys()
    assert config["nested_models.py"] == code["nested_models.py"]


@pytest.mark.usefixtures("connect")
def test_repository_holds_what_was_published_and_nothing_else(hub, folder):
    left = {".gitattributes": b"", "adapter_config.json": b"{}", "old/model.safetensors": b""}
    hub.repositories["tester/cats"] = Repository(False, [("0" * 40, left)])
    private = (".env", "log.txt", "trainer_state.json", "data/train.jsonl", "training_args.bin", "checkpoint-2/rng.pth")
    for name in (*private, "training.png", "LICENSE.txt", "sub/model.safetensors", "notes.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"hf_private")
    publish(folder, "tester/cats", token=TOKEN)
    files = hub.repositories["tester/cats"].commits[-1][1].keys()
    code = {"backbone.py", "configuration_backbone.py", "configuration_varmae.py", "heads.py", "modeling_varmae.py"}
    assert {"training.png", "LICENSE.txt", ".gitattributes", "model.safetensors", *code} <= files
    assert not {name for name in files if "/" in name or name in (*private, *left, "notes.py")} - {".gitattributes"}


@pytest.mark.usefixtures("connect")
def test_name_alone_is_of_the_owner_of_the_token(hub, folder):
    publish(folder, "cats", token=TOKEN)
    assert list(hub.repositories) == ["tester/cats"]
    assert "config.json" in hub.repositories["tester/cats"].commits[-1][1]


@pytest.mark.usefixtures("connect")
@pytest.mark.parametrize(
    ("method", "path", "answer", "message"),
    [
        ("POST", "/commit/", 500, r"\(500\): .* No partial commit exists; try again later"),
        ("POST", "/commit/", "cut", "No partial commit exists; try again later"),
        ("POST", "/commit/", 412, r"\(412\): Fault.* Nothing was published"),
        ("POST", "/preupload/", 404, r"\(404\): Fault.* Nothing was published"),
        ("PUT", "/store/", 500, "upload.* No partial commit exists; try again later"),
        ("POST", "/validate-yaml", 503, "No partial commit exists; try again later"),
        ("POST", "/repos/create", 401, r"\(401\): Fault. Log in with `hf auth login`"),
        ("POST", "/repos/create", 403, r"\(403\): Fault. Log in with `hf auth login`"),
    ],
)
def test_error_of_the_server_publishes_nothing(hub, folder, method, path, answer, message, monkeypatch):
    error = PermissionError if answer in (401, 403) else ConnectionError
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits a minute between its own tries
    hub.faults.append(Fault(method, path, answer, times=100))
    with pytest.raises(error, match=f"tester/cats.*{message}"):
        publish(folder, "tester/cats", token=TOKEN)
    assert not any(files for repository in hub.repositories.values() for _, files in repository.commits)


@pytest.mark.usefixtures("connect")
def test_commit_whose_answer_is_lost_is_whole(hub, folder):
    hub.faults.append(Fault("POST", "/commit/", "lost"))
    publish(folder, "tester/cats", token=TOKEN)
    first, second = (files for _, files in hub.repositories["tester/cats"].commits[1:])
    assert first == second and {"config.json", "model.safetensors", "README.md"} <= first.keys()


@pytest.mark.usefixtures("connect")
@pytest.mark.parametrize("answer", [429, 503, "cut"])
@pytest.mark.parametrize("path", ["/commit/", "/repos/create", "/preupload/", "/objects/batch", "/validate-yaml"])
def test_short_trouble_is_waited_for(hub, folder, path, answer):
    hub.faults.append(Fault("POST", path, answer, times=1))
    publish(folder, "tester/cats", token=TOKEN)
    assert len(hub.repositories["tester/cats"].commits) == 2


BUILD = """
import sys
from transformers import AutoTokenizer
from hf_domain import ExBertForMaskedLM
model = ExBertForMaskedLM.from_backbone("tester/own", trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained("tester/own", trust_remote_code=True)
model.save_pretrained("output")
tokenizer.save_pretrained("output")
print(round(float(model(**tokenizer("the cat", return_tensors="pt")).logits.double().sum()), 3))
"""
AGAIN = """
import sys
if sys.argv[1] == "without":
    sys.modules["hf_domain"] = None
else:
    import hf_domain
from transformers import AutoModelForMaskedLM, AutoTokenizer
batch = AutoTokenizer.from_pretrained("output", trust_remote_code=False)("the cat", return_tensors="pt")
for name, revision in (("tester/adapted", sys.argv[2]), ("tester/adapted", "main"), ("again", "main")):
    model = AutoModelForMaskedLM.from_pretrained(name, revision=revision, trust_remote_code=True)
    model.save_pretrained("again")
    assert type(model.config.backbone_config).__module__.startswith("transformers_modules.")
    print(round(float(model(**batch).logits.double().sum()), 3))
"""


@pytest.mark.commands
def test_an_encoder_with_code_and_a_model_around_it(hub, tmp_path):
    def upload(name, folder):
        repository = hub.repositories.setdefault(name, Repository())
        return repository.commit({file.name: file.read_bytes() for file in folder.iterdir()}, [])

    upload("tester/own", write_remote_encoder(tmp_path / "encoder"))
    built = run_process(hub, tmp_path, BUILD)
    assert built.returncode == 0, built.stderr[-3000:]
    revision = upload("tester/adapted", tmp_path / "output")
    del hub.repositories["tester/own"]
    for package in ("without", "with"):
        result = run_process(hub, tmp_path, AGAIN, package, revision)
        assert result.returncode == 0, result.stderr[-3000:]
        assert result.stdout == built.stdout * 3
        names = {file.name for file in (tmp_path / "again").glob("*.py")}
        assert names == {file.name for file in (tmp_path / "output").glob("*.py")}
        shutil.rmtree(tmp_path / "again")
