"""The table of docs/choosing.md agrees with the training command."""

import importlib.util
from pathlib import Path

import pytest

from sarlite.models import MODELS, RELATIONAL

ROOT = Path(__file__).parents[3]
REASONS = ("takes no edge", "takes graphs with one kind", "no narrow rows", "propagated features", "features that were propagated",
           "never asks")
spec = importlib.util.spec_from_file_location("cheat_sheet", ROOT / "packaging" / "cheat_sheet.py")
cheat_sheet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cheat_sheet)


def documented():
    """Return "yes" or "no" by (model, feature), as the page has it."""
    lines = [line.strip("| ").split(" | ") for line in (ROOT / "docs" / "choosing.md").read_text().splitlines() if line.startswith("| ")]
    start = next(number for number, words in enumerate(lines) if words[0] == "`--model`")
    features, rows = lines[start][1:], lines[start + 1 : start + 1 + len(MODELS) + len(RELATIONAL)]
    return {(model, feature): word for model, *words in rows for feature, word in zip(features, words, strict=True)}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    """Write the data of the attempts into a folder, and make it the current folder."""
    folder = tmp_path_factory.mktemp("cheat_sheet")
    cheat_sheet.write_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def test_the_page_has_all_models_and_features():
    assert set(documented()) == {(model, feature) for model in (*MODELS, *RELATIONAL) for feature in cheat_sheet.FEATURES}


def test_each_no_is_refused_for_its_reason():
    refused = [cell for cell, word in documented().items() if word == "no"]
    messages = {cell: cheat_sheet.refusal(cheat_sheet.arguments(*cell)) for cell in refused}
    wrong = {cell: text for cell, text in messages.items() if not text or not any(reason in text for reason in REASONS)}
    assert len(refused) > 20 and not wrong, wrong


@pytest.mark.parametrize("feature", cheat_sheet.FEATURES)
def test_a_yes_of_each_feature_trains(feature):
    """One model for each feature; the models' own tests train the others."""
    models = [model for (model, name), word in documented().items() if name == feature and word == "yes"]
    model = models[len(feature) % len(models)]
    assert cheat_sheet.refusal(cheat_sheet.arguments(model, feature)) is None, model
