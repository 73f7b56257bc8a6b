"""`divevlm eval`: a sweep from its description to its results, on one process or many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed
from tqdm import tqdm

from divevlm.checks import require
from divevlm.experiments import results, stock
from divevlm.experiments.answering import Answerer
from divevlm.experiments.journal import Journal, Record
from divevlm.experiments.lmms.scores import cells
from divevlm.experiments.loading import machine, rank
from divevlm.experiments.memory import cards, told
from divevlm.experiments.paper.recipe import benchmarks
from divevlm.experiments.settings import Setting, check_budgets, grid
from divevlm.experiments.sweep import Mode, shard, sweep
from divevlm.experiments.tasks import ALL, Item, expand, is_embedded, items
from divevlm.loading import Loaded, config_of, embedded_name, family_name, load
from divevlm.methods import parse
from divevlm.models import FAMILIES

Inputs = Literal["stock", "chat", "template"]
FORMAT = 2  # of the folders: raised when samples of before must not be added to
LATER = ("new_tokens", "inputs", "ocr", "pad", "include")  # what only some tasks depend on


@dataclass(frozen=True)
class Run:
    """methods and keeps are crossed.

    limit   samples of each task (None: 125 of an embedded one, all of a benchmark); limits: of some benchmarks by name
    inputs  of benchmarks: as lmms-eval's own model makes them ("stock"), or the task's messages ("chat") or its plain text
            ("template") through the checkpoint's chat template
    ocr     OCR tokens in TextVQA's prompts; pad: LLaVA-1.5's pictures to squares, as its authors do, instead of a crop
    """

    model: str
    methods: tuple[str, ...]
    keeps: tuple[int | float, ...]
    out: Path
    tasks: tuple[str, ...] = (ALL,)
    limit: int | None = None
    seed: int = 0
    batch: int = 16
    split: str = "validation"
    mode: Mode = "generate"
    new_tokens: int = 16
    engine: Literal["process", "ray"] = "process"
    workers: int = 2
    shared: bool = True
    inputs: Inputs = "chat"
    dtype: str | None = None
    include: Path | None = None  # a folder with lmms-eval tasks of one's own
    limits: tuple[tuple[str, int | None], ...] = ()
    ocr: bool = False
    pad: bool = False
    device_map: str | None = None

    @property
    def settings(self) -> list[Setting]:
        return grid(self.methods, self.keeps, self.seed)

    @property
    def embedded(self) -> list[str]:
        return expand([name for name in self.tasks if is_embedded(name)]) if self._has(True) else []

    @property
    def benchmarks(self) -> list[str]:
        return [name for name in self.tasks if not is_embedded(name)] if self._has(False) else []

    def _has(self, embedded: bool) -> bool:
        return any(is_embedded(name) == embedded for name in self.tasks)

    @property
    def asked(self) -> list[str]:
        """Tasks that our own sweep asks: the embedded ones and, with teacher forcing, the others too."""
        return [*self.embedded, *(self.benchmarks if self.mode == "forced" else [])]

    def items(self) -> list[Item]:
        sizes: Sequence[tuple[int, int]] = ()
        if embedded_name(self.model) == "qwen2vl":  # takes any
            from divevlm_tiny import SIZES

            sizes = SIZES
        limit = 125 if self.limit is None else self.limit
        found = items(self.embedded, limit, self.split, sizes) if self.embedded else []
        if self.mode == "forced" and self.benchmarks:
            from divevlm.experiments.lmms import sweep as lmms

            found += lmms.items(self)
        return found

    def limit_of(self, benchmark: str) -> int | None:
        return dict(self.limits).get(benchmark, self.limit)

    @property
    def stock_name(self) -> str:
        """What lmms-eval's tasks take the model for: some have prompts of their own for some models."""
        return stock.name(family_name(self.model)) if self.inputs == "stock" else "divevlm"

    def load(self) -> Loaded:
        limited = bool(self.benchmarks) and self.inputs == "stock"
        pixels = stock.pixels(family_name(self.model)) if limited else None
        return load(self.model, dtype=self.dtype, device_map=self.device_map, pixels=pixels)

    def check(self) -> None:
        """What can be told before data and model are loaded, but for the tasks' names."""
        require(self.batch >= 1, "batch-size", self.batch, "at least 1")
        for limit in (self.limit, *dict(self.limits).values()):
            require(limit is None or limit >= 1, "limit", limit, "at least 1")
        known = {*self.benchmarks, *(entry["task"] for entry in benchmarks().values())}
        strange = [name for name, _ in self.limits if name not in known]
        require(
            not strange, "limit", ",".join(strange), f"of tasks that are asked ({', '.join(self.benchmarks) or 'none'})"
        )
        check_budgets(self.settings, config_of(self.model))
        if self.benchmarks:
            family = family_name(self.model)
            if self.inputs == "stock":
                stock.check(family)
            reads = any(parse(name)[0] == "mmtok" for name in self.methods)
            alone = self.batch == 1 or not self.pad or not reads
            require(alone, "batch-size", self.batch, "1 for mmtok with padded pictures, which it looks for bars in")
            require(
                not self.pad or FAMILIES.get(family).plain,
                "pad",
                True,
                f"False for {family}: only LLaVA-1.5's pictures are cropped",
            )

    def journal(self, number: int = 0) -> Journal:
        return Journal(self.out, self.same, number, LATER)

    @property
    def same(self) -> dict[str, Any]:
        """What all answers of a folder have in common, as far as these tasks depend on it."""
        found = {name: getattr(self, name) for name in ("model", "split", "mode", "seed", "shared", "dtype")}
        found["format"] = FORMAT
        if self.embedded and self.mode == "generate":  # benchmarks say themselves how long an answer is
            found["new_tokens"] = self.new_tokens
        if self.benchmarks:
            include = None if self.include is None else str(self.include.resolve())
            found |= {"inputs": self.inputs, "ocr": self.ocr, "pad": self.pad, "include": include}
        return found


class Result(dict[str, Any]):
    """What `results.json` holds; beside it the finished samples behind it, and the model that answered (None: actors did)."""

    def __init__(self, found: dict[str, Any], records: list[Record], loaded: Loaded | None = None) -> None:
        super().__init__(found)
        self.records, self.loaded = records, loaded


def evaluate(run: Run, loaded: Loaded | None = None) -> Result:
    """Do what is not done yet, then sum up what is on disk; the first process writes `results.json`, `.md` and `.csv`.

    loaded: the run's model and processor, where the caller has them already
    """
    number, world = rank()
    require(run.engine != "ray" or world == 1, "engine", "ray", "used without torchrun and accelerate launch")
    join(world)
    torch.manual_seed(run.seed)
    with run.journal(number) as journal:
        wanted, suite = run.settings, None  # wrong values are told before a model is loaded
        if run.benchmarks:
            from divevlm.experiments.lmms import sweep as lmms

            lmms.check(run)
        run.check()
        questions = run.items()
        if run.benchmarks and run.mode == "generate":
            suite = lmms.suite(run)
        if run.engine == "ray":
            from divevlm.experiments.on_ray import ray_sweep

            ray_sweep(run, journal, questions, suite)
        else:
            if number == 0 and suite is not None and loaded is None:
                spread = run.device_map is not None
                sys.stderr.write(told(config_of(run.model), run.dtype, run.batch, cards(), spread) + "\n")
            model, processor = loaded = loaded or run.load()
            if run.asked:
                mine = shard(questions, number, world)
                with bar(len(mine) * len(wanted), number) as tick:
                    answerer = Answerer(model, processor, run.shared)
                    sweep(answerer, mine, wanted, journal, run.batch, run.mode, run.new_tokens, tick)
            if suite is not None:
                lmms.answer(run, suite, Answerer(model, processor, shared=False), journal)
            wait_for_all()
        journal.catch_up()
        scores = lmms.score(run, suite, journal) if suite is not None and number == 0 else {}
        tasks = {*run.embedded, *run.benchmarks, *(suite.tasks if suite is not None else ())}
        done = [record for record in journal.done.values() if record["task"] in tasks]
        return Result(summary(run, scores, done, journal.wall()), done, loaded)


def summary(run: Run, benchmarks: dict[str, Any], records: list[Record], seconds: float) -> dict[str, Any]:
    """The results of everything that is on disk."""
    made = results.rows(records, run.settings, run.asked) if run.asked else []
    config = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(run).items()}
    result = {"config": config, "machine": machine(), "wall_seconds": seconds, "rows": made}
    if benchmarks:
        result["benchmarks"] = benchmarks
    if made:
        head, lines = results.cells(made)
        count = sum(made[0]["n"].values())
        title = f"{run.model}, {count} questions ({run.split}); percent, relative: mean share of vanilla's"
    else:
        head, lines = cells(benchmarks)
        title = f"{run.model}, lmms-eval"
    results.save(run.out, "results", result, head, lines, title)
    return result


@contextmanager
def bar(total: int, number: int = 0) -> Iterator[Any]:
    """A progress bar of the first process, where stderr is a terminal."""
    with tqdm(total=total, unit="sample", disable=None if number == 0 else True) as shown:

        def tick(count: int, text: str) -> None:
            shown.set_postfix_str(text, refresh=False)
            shown.update(count)

        yield tick


def join(world: int) -> None:
    """One group of all processes, before lmms-eval makes one that waits for half an hour only."""
    if world > 1 and "MASTER_ADDR" in os.environ and not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=timedelta(days=7))


def wait_for_all() -> None:
    """Until every process has written its last sample. Without an address (plain RANK and WORLD_SIZE) nobody waits: run the
    command once more when all are done."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()


def usual_inputs(model: str) -> Inputs:
    """Those of lmms-eval's own model where it has one of that family; an embedded model knows its own template only."""
    return "stock" if embedded_name(model) is None and stock.name(family_name(model)) else "chat"
