"""How many examples a property test draws: a fifth in `make test`, all in `make test-all`."""

import os

THOROUGH = os.environ.get("TESTS") == "thorough"


def examples(count: int) -> int:
    return count if THOROUGH else max(5, count // 5)
