import os

from satrap.runtime.environment import variables


def test_what_is_set_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("SATRAP_TEST", "3")
    assert variables()["SATRAP_TEST"] == "3"
    variables()["SATRAP_TEST"] = "4"
    assert os.environ["SATRAP_TEST"] == "4"
