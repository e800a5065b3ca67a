"""What the scripts of this folder share; each of them runs as one script that starts with this file."""

import json
import math
import os
import subprocess
import threading

# Longer than this and what there is gets printed: one hanging case must not cost the other results.
BUDGET_S = 145.0


def percentile(ordered, percent):
    """Nearest rank, as the harness has it."""
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def driver_version():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.split()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None


class Report:
    """What is printed, once, by whoever comes first: the end of the script or the watchdog."""

    def __init__(self, budget_s=BUDGET_S):
        self.budget_s = budget_s
        # Libraries and compilers print to standard output; it is for the result alone.
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.lock, self.printed = threading.Lock(), False
        # The case that is under way, as the fields that name it.
        self.environment, self.results, self.running = {}, [], None

    def print(self, unfinished=None):
        with self.lock:
            if self.printed:
                return
            self.printed = True
            results = self.results + ([unfinished] if unfinished else [])
            json.dump({"environment": self.environment, "results": results}, self.out)
            self.out.write("\n")
            self.out.flush()

    def give_up(self):
        case = self.running
        late = dict(case, n=0, error=f"not finished within the {self.budget_s:.0f} s of the script") if case else None
        self.print(late)
        os._exit(0)

    def watch(self):
        """Gives up when the budget is spent."""
        watchdog = threading.Timer(self.budget_s, self.give_up)
        watchdog.daemon = True
        watchdog.start()
