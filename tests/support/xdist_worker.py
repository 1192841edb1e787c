"""`python -m tests.support.xdist_worker` in a copy: a process of pytest-xdist, with a fork server at once.

It does what execnet asks `python -c` for: runs the line that comes first on standard input.
"""

import sys

from tests.support import copies, forked

if __name__ == "__main__":  # a process that `multiprocessing` spawns imports this module, too
    with copies.as_servers():
        forked.server()  # now, before there are threads
    exec(eval(sys.stdin.readline()))
