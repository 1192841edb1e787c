"""`python -m tests.support.xdist_worker` in a copy: a process of pytest-xdist, with a fork server at once.

It does what execnet asks `python -c` for: runs the line that comes first on standard input.
"""

import sys

from tests.support import copies, forked

with copies.as_servers():
    forked.server()  # now, before there are threads
exec(eval(sys.stdin.readline()))
