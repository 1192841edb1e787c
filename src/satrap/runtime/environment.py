"""The environment variables of this process; no other module accesses them."""

import os
from collections.abc import MutableMapping


def variables() -> MutableMapping[str, str]:
    """Return the environment variables; libraries loaded later see changes to them."""
    return os.environ
