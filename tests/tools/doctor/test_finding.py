from dataclasses import asdict

from satrap.tools.doctor import Finding


def test_a_finding_is_plain_data() -> None:
    assert asdict(Finding("disk", "ok", "fast")) == {
        "check": "disk",
        "level": "ok",
        "found": "fast",
        "fix": "",
    }
