"""`python -m tests.docs.script FILE ARGUMENTS...`: what `python FILE ARGUMENTS...` does, "-" is the input."""

import runpy
import sys

del sys.argv[0]
if sys.argv[0] == "-":
    exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
