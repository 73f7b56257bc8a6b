"""Tasks on local data, and a sweep of them that ran through."""

import pytest

from divevlm.experiments.journal import read
from divevlm.experiments.lmms.tasks import write
from divevlm.experiments.runner import Run, evaluate

TASKS = "divevlm_existence,divevlm_reading"


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write(folder, limit=3)
    return folder


@pytest.fixture(scope="session")
def whole(micro, suite, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, evaluated(micro, suite, folder)


def evaluated(micro, suite, out, **more):
    run = Run(micro, ("dive",), (24,), out, tuple(TASKS.split(",")), batch=2, include=suite, **more)
    return evaluate(run)


def predictions(folder, method="dive"):
    found = {}
    for path in folder.glob("samples*.jsonl"):
        for record in read(path):
            if record["method"] == method:
                assert (record["task"], record["sample"]) not in found
                found[record["task"], record["sample"]] = record["prediction"]
    return found
