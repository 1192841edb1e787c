"""`python -m satrap.launch`: the process of one worker, with its assignment on standard input."""

import os
import sys

from satrap.launch.cluster.worker import main

code = main()
sys.stderr.flush()
os._exit(code)  # threads that wait for another worker must not block the exit
