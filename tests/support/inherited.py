"""A program for copies: it prints who forked it, its open files, and which of the modules named it has."""

import json
import os
import sys

files = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]
print(json.dumps([os.getppid(), files, [name in sys.modules for name in sys.argv[1:]]]))
