"""Model cards: what someone reads before they use a model is there, true, and in one piece."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dgz import load_numbers
from dgz.experiments import run
from dgz.model import DGZ
from dgz.records import Record
from dgz.report import write_card
from dgz.report.card import model_card


@pytest.fixture(scope="module")
def record() -> Record:
    return run(DGZ.without_generator(n_epochs=1, generator__n_epochs=1), load_numbers(0, n_train=3))


def card(record: Record, **options: dict[str, str]) -> str:
    return model_card(record, command="dgz train numbers --out run", **options)


def test_a_card_has_what_one_needs_to_know(record: Record, tmp_path: Path) -> None:
    path = write_card(record, tmp_path, command="dgz train numbers --out run")
    text = path.read_text()
    assert path == tmp_path / "model_card.md"
    assert text == card(record)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Use", "Data", "Training", "Scores", "Limits", "Licences"]
    assert "over 100 classes: 80 it has seen rows of in training, and 20 that it knows from one vector each" in text
    assert "| Command | `dgz train numbers --out run` |" in text
    assert "| Rows | 240 train, 1,600 test seen, 400 test unseen |" in text
    assert f"| Parameters | {record.n_parameters:,} |" in text
    assert "| generator.n_epochs | `1` |" in text
    assert record.data["hashes"]["features"][:12] in text
    assert "- The code that made this model, dgz: MIT." in text


def test_every_tested_class_has_its_accuracy_and_kind_worst_first(record: Record) -> None:
    rows = re.findall(r"^\| (\S+) \| (seen|unseen) \| ([\d.]+) \|$", card(record), re.MULTILINE)
    found = {name: (kind, float(accuracy)) for name, kind, accuracy in rows}
    assert len(rows) == len(found) == 100
    for number, accuracy in record.scores["per_class"].items():
        kind = "unseen" if int(number) in record.unseen else "seen"
        assert found[record.class_names[number]] == (kind, round(100 * accuracy, 1))
    accuracies = [float(accuracy) for _, _, accuracy in rows]
    assert accuracies == sorted(accuracies)


def test_the_balance_between_seen_and_unseen_classes_is_told(record: Record) -> None:
    confusion = {"seen_as_unseen": 0.123, "unseen_as_seen": 0.456}
    text = card(replace(record, scores={**record.scores, "confusion": confusion}))
    assert "12.3 % of test rows of seen classes got an unseen class" in text
    assert "45.6 % of those of unseen classes a seen one" in text


def test_scores_that_were_chosen_on_test_rows_are_labelled(record: Record) -> None:
    assert "Rule `last`: the final weights, and nothing was chosen by test scores." in card(record)
    assert "**the epoch that was best on the test rows**" in card(replace(record, selection="oracle"))
    assert "no result" in card(replace(record, quick=True))
    assert "no result" not in card(record)


def test_a_model_that_was_never_tested_says_so(record: Record) -> None:
    text = card(replace(record, scores={}))
    assert "How good the model is, nobody knows." in text
    assert "Accuracy, %" not in text
    assert "The balance" not in text


def test_licences_of_others_weights_are_named(record: Record) -> None:
    assert "- Weights of lite0: Apache-2.0." in card(record, weights={"lite0": "Apache-2.0"})


def test_a_table_survives_odd_names(record: Record) -> None:
    odd = {**record.class_names, "0": "a | b\nc"}
    assert "| a \\| b c | " in card(replace(record, class_names=odd))


def test_an_overlap_in_the_source_is_told(record: Record) -> None:
    text = card(replace(record, data={**record.data, "leaks": {"train_loc": 1173}}))
    assert "Index sets of the source overlap its test rows and were not used: train_loc (1,173 rows)." in text


def test_features_of_a_fine_tuned_network_are_marked(record: Record) -> None:
    sentence = "of a network that was trained further on photos of the seen classes: compare with such only."
    assert sentence in card(replace(record, data={**record.data, "features": "lite0-finetuned"}))
    assert sentence not in card(record)
