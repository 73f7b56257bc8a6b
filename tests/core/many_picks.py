"""The kernel on thousands of picks, minutes to hours of interpreting: `python -m tests.core.many_picks 2100 2048`."""

import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"

from importlib import import_module

import divevlm
from tests.core.oracle import assert_right, states

TILE = 1024  # rows at a time: on a GPU 8 or 16, but the interpreter pays by the operation


def main(n: int, keep: int) -> None:
    kernel = import_module("divevlm.core.kernel")
    real = kernel.kernel_picks
    kernel.kernel_picks = lambda problem, way: real(problem, way, tile=TILE)
    x, q = states("clustered", n, 32, 6)
    start = time.perf_counter()
    picks = divevlm.select(x, q, keep, loop="triton", columns="gram")
    assert_right(x, q, picks)
    print(f"N={n} K={keep}: as Algorithm 1 in float64, {time.perf_counter() - start:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
