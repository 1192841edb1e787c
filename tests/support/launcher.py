"""`python -m tests.support.launcher ARGUMENTS...` in a copy: the command line, with a fork server at once.

Its server is another copy, where `satrap train` as users start it begins one that has to import everything.
"""

from satrap.cli import main
from tests.support import copies

if __name__ == "__main__":
    with copies.as_servers():
        main()
