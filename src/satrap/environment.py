"""The environment variables of this process; the only module that touches them."""

import os
from collections.abc import MutableMapping


def variables() -> MutableMapping[str, str]:
    """Return them; what is set there is seen by libraries that are loaded later."""
    return os.environ
