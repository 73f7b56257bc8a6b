"""`divevlm serve` as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


class Process:
    def __init__(self, folder, *options):
        command = [
            sys.executable,
            "-m",
            "divevlm.cli",
            "serve",
            "--model",
            str(folder),
            "--name",
            "small",
            "--port",
            "0",
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.run = subprocess.Popen(
            [*command, "--device", "cpu", *options], stdout=subprocess.PIPE, text=True, env=environment
        )
        self.first = self.run.stdout.readline()
        self.url = self.first.split()[-1] if self.first else None

    def memory(self):
        """Resident, in bytes."""
        return int(Path(f"/proc/{self.run.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run.kill()
        self.run.communicate()
