"""The tables and plots made of the results."""

import re

import numpy as np
import pandas as pd
import pytest
from pretended_runs import pretend, run_comparison, write_plan
from script_runs import call_main

from hf_domain.comparison import figures, report
from hf_domain.comparison.decision import format_points, list_bets
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import make_tables, write_report
from hf_domain.comparison.statistics import compare_draws, compute_interval
from hf_domain.comparison.summary import draw_runs
from hf_domain.examples import compare


def test_report_says_what_the_results_say(plan, tmp_path):
    results = {result.step.name: result for result in run_comparison(plan, tmp_path / "output", execute=pretend)}
    report = write_report(tmp_path / "output")
    text = (tmp_path / "output" / "report.md").read_text()
    scores = [results[f"varmae-animals-seed{seed}"].score for seed in (1, 2)]
    baseline = [results[f"dapt-animals-seed{seed}"].score for seed in (1, 2)]
    assert report.differences["varmae"]["animals"].mean == pytest.approx(np.mean(scores) - np.mean(baseline))
    assert f"| VarMAE | {np.mean(scores):.1f} ± {compute_interval(scores):.1f} (" in text
    loss = results["encoder-on-general"].masked_lm_loss
    assert f"| the encoder as it was | {loss:.2f} |" in text
    assert report.costs["gmap"]["tokens"] == report.costs["dapt"]["tokens"] == 16 * 64
    assert report.costs["dapt"]["inference ms"] == (500 / 24 + 500 / 12) / 2  # half a second a test set
    assert "preparation s" in report.costs["adalm"].keys() & report.costs["rada"].keys() - report.costs["dapt"].keys()
    costs = text.partition("## Costs")[2].partition("## ")[0].splitlines()
    assert [line for line in costs if "(cached) |" in line] == [
        line for line in costs if line.startswith(("| G-MAP", "| RADA"))
    ]
    assert "dapt" not in [name for name, row in report.differences.items() if row]
    assert not list((tmp_path / "output").rglob("dapt-animals-seed1-*/*.safetensors"))
    assert list((tmp_path / "output").rglob("dapt-pets-????????/*.safetensors"))


def test_a_section_is_a_function_and_a_line(plan, tmp_path, monkeypatch):
    """A toy: the best run of each row."""

    def make_best_table(found):
        runs = pd.DataFrame([{"row": row, "score": result.score} for (row, _, _), result in found.runs.items()])
        return runs.groupby("row").max()

    monkeypatch.setattr(report, "SECTIONS", [*report.SECTIONS, report.Section("Best runs", make_best_table, "A toy.")])
    results = run_comparison(plan, tmp_path / "output", execute=pretend)
    write_report(tmp_path / "output")
    best = max(each.score for each in results if each.step.name.startswith("dapt-") and each.score is not None)
    for file in ("report.md", "report.html"):
        text = (tmp_path / "output" / file).read_text().partition("Best runs")[2]
        assert f"{best:.1f}" in text and "A toy." in text, file


def test_a_vote_is_paired_with_the_models_it_is_added_to(content, run_plan):
    """The seeds of a row with a vote are those of the row without: not so those of rows with models of their own."""
    pytest.importorskip("tantivy")
    content["methods"] = {"no_adaptation": None, "dapt": None, "general_text": None, "vote": None}
    content["methods"]["plain_vote"] = {"recipe": "no_adaptation", "fine_tuning": {"nearest_vote": True}}
    del content["tasks"]["entities"]
    report = run_plan()
    draws = draw_runs(report.runs.values(), ["animals"])
    for own, is_same in (("vote", True), ("general_text", False), ("no_adaptation", False), ("plain_vote", False)):
        expected = compare_draws(draws[own], draws["dapt"], has_same_models=is_same)
        assert report.differences[own]["animals"].high == pytest.approx(expected.high), own
        pair = (own, "dapt") if own != "general_text" else ("dapt", "general_text")
        assert report.decisions[pair].high - report.decisions[pair].low == pytest.approx(expected.high - expected.low)
    paired = compare_draws(draws["plain_vote"], draws["no_adaptation"], has_same_models=True)
    assert report.gains["plain_vote"].high == pytest.approx(paired.high)


def test_losses_of_other_tokens_are_marked(content, tmp_path, vocabularies, run_plan):
    content["methods"] = {
        "dapt": None,
        "no_adaptation": None,
        "adalm": None,
        "more": {"recipe": "varmae", "after": "adalm"},
        "mine": {"recipe": "no_adaptation", "encoder": "theirs"},
    }
    vocabularies |= {"more-pets": "expanded", "theirs": "their own"}
    written = run_plan()
    lines = (tmp_path / "plan" / "report.md").read_text().splitlines()
    for title, is_own in (
        ("AdaLM vocabulary + DAPT", True),
        ("VarMAE (more) after AdaLM vocabulary + DAPT", True),
        ("no adaptation (mine)", True),
        ("DAPT", False),
    ):
        row = [line for line in lines if line.startswith(f"| {title} | ")][-1]
        assert row.count(f"{written.losses[title]['pets']:.2f}") == 1 and row.count(" (own tokens) |") == 2 * is_own
    assert "preparation s" in written.costs["more"]  # of the encoder that it starts from
    # The order of a row is not that of a set: the same results make the same file, byte for byte.
    spent = ["pre-training s", "tokens", "trained parameters", "checkpoint MB", "fine-tuning s", "inference ms"]
    assert list(written.costs["more"]) == [*spent, "preparation s"]
    assert "preparation s" not in written.costs["dapt"]


@pytest.mark.figures
def test_the_page_needs_no_other_file(tmp_path, run_plan):
    written = run_plan()
    page = (tmp_path / "plan" / "report.html").read_text(encoding="utf-8")
    assert len(page) < 150_000 and not re.search(r"<(img|link|iframe)|<script[^>]*src|@import", page)
    gains = page.partition('id="figure-gains"><svg')[2].partition("</figure>")[0]
    for bet in list_bets(written):  # the picture has each row with its gain, in the color of the page's text
        assert format_points(bet.gain) in gains and written.titles[bet.row].split()[0] in gains
    assert "`" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL) and "&amp;" not in page
    assert figures.INK not in page and "currentColor" in gains
    pixels = (tmp_path / "plan" / "gains.png").read_bytes()
    assert pixels.startswith(b"\x89PNG") and int.from_bytes(pixels[16:20], "big") > 1000


def test_report_without_dapt_speaks_of_no_difference(content, tmp_path, load):
    content["methods"] = {"tapt": None}
    run_comparison(load(), tmp_path / "output", execute=pretend)
    assert not any(write_report(tmp_path / "output").differences.values())
    assert "over DAPT" not in (tmp_path / "output" / "report.md").read_text()


def test_rows_that_are_called_alike_have_titles_of_their_own(content, tmp_path, load):
    content["methods"] = {"dapt": None, "tapt_after_dapt": None, "tapt": {"after": "dapt"}}
    run_comparison(load(), tmp_path / "output", execute=pretend)
    titles = ["DAPT", "TAPT after DAPT (tapt_after_dapt)", "TAPT after DAPT (tapt)"]
    report = write_report(tmp_path / "output")
    assert [*report.titles.values()] == titles and {*titles} <= {*report.losses}
    assert make_tables(report)["Means over the tasks"].index.tolist() == titles


def test_one_seed_says_nothing_of_differences(content, tmp_path, run_plan):
    content["seeds"] = [1]
    run_plan()
    text = (tmp_path / "plan" / "report.md").read_text()
    assert "one seed: no test" in text and "difference on" not in text and "Against DAPT" not in text


def test_markdown_shows_markup_as_text():
    table = report.format_markdown_table(pd.DataFrame({"<b>task": ["<script>alert(1)</script> a & b"]}, index=["<i>"]))
    assert "<" not in table and "&lt;script>alert(1)&lt;/script> a & b" in table
    told = report.format_markdown_table(pd.DataFrame({"p": ["p < 0.001", "&lt; <!-- x", "a | b", "p <0.01"]}))
    assert "| p < 0.001 |" in told and "| p <0.01 |" in told and "&amp;lt; &lt;!-- x" in told and "a \\| b" in told


def make_run(constant):
    """Pretend runs; those of the methods in `constant` predict only the most frequent label, or no entity."""

    def run(step, plan, folder):
        pretend(step, plan, folder)
        if step.kind == "fine_tuning" and (constant is None or step.method in constant):
            for name, word in (("predict_results.txt", r"(?<=\t)\w+$"), ("predictions.txt", "B-A")):
                if (file := folder / name).is_file():
                    header, *lines = file.read_text().splitlines()
                    label = "cat" if name == "predict_results.txt" else "O"
                    text = "\n".join([re.sub("B-A", label, header), *(re.sub(word, label, line) for line in lines)])
                    file.write_text(text + "\n")

    return run


def test_rows_that_did_not_learn_are_marked(content, tmp_path, run_plan):
    content["methods"] = {"dapt": None, "varmae": None}
    run_plan(make_run(["varmae"]))
    text, page = ((tmp_path / "plan" / f"report.{kind}").read_text() for kind in ("md", "html"))
    head, _, _ = text.partition("## ")
    assert "**Use DAPT: no other row can be compared with it.**" in head
    assert (
        "4 of 8 fine-tunings did not learn: they are no better than the majority baseline. These are VarMAE on "
        "animals (2 of 2 runs); VarMAE on entities (2 of 2 runs).\n"
    ) in head
    assert "4 of 8 fine-tunings did not learn" in page
    assert "| VarMAE | 16.7 ± 0.0 [did not learn] (" in text and "| 0.0 ± 0.0 [did not learn] (" in text
    assert "| majority baseline | 16.7 | 0.0 |" in text
    assert text.count("[did not learn]") == 2


def test_a_comparison_in_which_nothing_learned_says_so_first(content, tmp_path, monkeypatch, capsys):
    content["methods"] = {"dapt": None, "varmae": None}
    path = write_plan(content, tmp_path)
    run_comparison(load_plan(path), tmp_path / "plan", execute=make_run(None))
    call_main(compare.main, monkeypatch, path, "--report_only")
    sentence = "No row learned: all 8 fine-tunings are no better than the majority baseline"
    assert (tmp_path / "plan" / "report.md").read_text().split("\n\n")[1].startswith(f"**{sentence}")
    assert sentence in capsys.readouterr().out.splitlines()[-1]


def test_runs_of_one_encoder_do_not_hide_how_encoders_differ():
    """A cell shows the wider interval: nine runs of three encoders are not nine independent ones."""
    runs = {f"{encoder}-{seed}": 50.0 + 5 * encoder + 0.1 * seed for encoder in range(3) for seed in range(3)}
    three = compute_interval([50.1, 55.1, 60.1])
    assert report.measure_spread(runs) == pytest.approx(three) and three > 2 * compute_interval([*runs.values()])
    alike = {f"{encoder}-{seed}": float(seed) for encoder in range(3) for seed in range(3)}
    assert report.measure_spread(alike) == pytest.approx(compute_interval([*alike.values()]))
    for name in ("3-{}", "{}"):  # one encoder, or none
        assert report.measure_spread({name.format(seed): float(seed) for seed in range(3)}) == pytest.approx(
            compute_interval([0.0, 1.0, 2.0])
        )
