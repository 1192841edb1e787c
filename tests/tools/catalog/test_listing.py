"""Models as text."""

from __future__ import annotations

from satrap.tools.catalog import about, catalog, listed, shown


def test_a_model_is_one_line_with_needs_and_presets() -> None:
    lines = listed(catalog()).splitlines()
    [fm] = [line for line in lines if line.startswith("fm ")]
    assert fm.split()[:3] == ["fm", "ids", "-"]
    [mixer] = [line for line in lines if line.startswith("rankmixer ")]
    assert "tiny, published, published_1b" in mixer
    assert "ids: at least one categorical feature" in lines
    assert len(listed([about("lr")]).splitlines()) == 2


def test_one_model_has_its_arguments_defaults_and_presets() -> None:
    text = shown(about("wukong"))
    assert "source: Zhang et al." in text
    assert "needs: at least one categorical feature\ndims: brought to one width\n" in text
    assert "\n  hidden: [256, 128]         widths of the last MLP's hidden layers" in text
    assert "\n  tiny: the defaults\n  published: layers: 3, fmb: 40" in text
    assert max(map(len, text.splitlines())) <= 100
    assert shown(about("lr")).endswith("no arguments")
