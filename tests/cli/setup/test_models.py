import json

from satrap import models
from tests.cli.command import process, satrap


def test_models_are_listed_with_needs_and_presets() -> None:
    answer = satrap("models")
    assert answer.code == 0
    names = [line.split()[0] for line in answer.out.partition("\n\n")[0].splitlines()[1:]]
    assert names == list(models.names())
    found = json.loads(satrap("models", "--json").out)
    assert [one["name"] for one in found] == names
    assert found[1]["needs"] == ["ids"]


def test_one_model_is_shown_with_its_arguments() -> None:
    answer = process("models", "dcnv2")
    assert answer.code == 0
    assert "\n  cross_layers: 3 " in answer.out
    found = json.loads(satrap("models", "fibinet", "--json").out)
    assert found["arguments"][0]["name"] == "bilinear"
    assert found["presets"]["published"]["bilinear"] == "pair"
    satrap("models", "deep_fm").assert_refused("model 'deep_fm' is unknown", "did you mean 'deepfm'?")
