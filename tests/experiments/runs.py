"""A small sweep, as the tests of runners and launchers start it."""

import os
import subprocess
import sys

from divevlm.experiments.journal import read
from divevlm.experiments.runner import Run

METHODS, KEEPS, TASKS = ("dive", "grid"), (48, 16), ("existence", "reading")


def the_run(micro, out, **more):
    return Run(micro, METHODS, KEEPS, out, TASKS, limit=4, batch=4, new_tokens=4, **more)


def arguments(micro, out):
    """The same for the command."""
    words = "--method dive,grid --keep 48,16 --tasks existence,reading --limit 4 --batch-size 4 --new-tokens 4"
    return ["eval", "--model", micro, *words.split(), "--out", str(out)]


def python(*words, **environment):
    """A process of its own, to its end."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *map(str, words)], env=own, capture_output=True, text=True)


def samples(folder):
    """What does not depend on the clock, of every finished sample; none may be there twice."""
    found = {}
    for path in folder.glob("samples*.jsonl"):
        for record in read(path):
            key = record["method"], record["keep"], record["task"], record["sample"]
            assert key not in found
            found[key] = record["prediction"], record["score"], record["kept"]
    return found
