"""`python -m playproof.online.child`: a mock worker process, started by `processes`."""

import sys

from playproof.online.processes import child

if __name__ == "__main__":
    sys.exit(child(sys.stdin.buffer, sys.stdout))
