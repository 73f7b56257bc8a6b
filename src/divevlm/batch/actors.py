"""`--engine ray`: Ray Data actors, each with an engine of its own. A killed actor is replaced and its batch asked again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from divevlm.batch.job import Job
from divevlm.batch.rows import Row
from divevlm.experiments.journal import Journal
from divevlm.experiments.on_ray import Row as Sent
from divevlm.experiments.on_ray import spread


class Actor:
    """Inside Ray; one item is one batch."""

    def __init__(self, job: Job) -> None:
        self.engine = job.ready()

    def __call__(self, sent: Sent) -> list[Sent]:
        rows = [Row(**one) for one in json.loads(sent["todo"])]
        return [{"record": json.dumps(record)} for record in self.engine(rows)]


def spread_rows(job: Job, journal: Journal, todo: Sequence[Sequence[Row]]) -> None:
    """Answers go to the journal as they come; the order of rows is nobody's business here."""
    found = [[asdict(row) for row in some] for some in todo]
    spread(Actor, job, job.actors, journal, found, sum(map(len, todo)))
