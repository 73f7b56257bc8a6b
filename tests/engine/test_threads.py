"""Several threads on one model, several models at once: every call gets what it gets alone."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import divevlm
from tests.engine.samples import picture, sample
from tests.zoo import build, inputs

CALLS = 2_000
THREADS = 8


def requests(entry):
    """Texts, images of several sizes, several images, batches."""
    some = [[sample(n, picture(n, 60 + 30 * n, 150 - 20 * n))] for n in range(4)]
    some += [[sample(0)], [sample(1)], [sample(2, picture(7, 90, 60), picture(8, 60, 60))]]
    some += [[sample(0, picture(9, 64, 64)), sample(1), sample(2, picture(10, 100, 50))]]
    return [inputs(entry, samples) for samples in some]


def call(entry, given, how):
    with torch.no_grad():
        if how == "forward":
            return entry.model(**given).logits[:, -1]
        return entry.model.generate(**given, max_new_tokens=2, do_sample=False)


def alone(work):
    return [call(*job) for job in work]


def same(result, want):
    return result.shape == want.shape and torch.allclose(result.float(), want.float(), atol=1e-4)


@pytest.fixture(autouse=True)
def one_core():
    """Each call on one core, so that calls and not kernels run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_thousands_of_mixed_calls_on_two_models_at_once():
    entries = [build("llava"), build("llava_next")]
    with divevlm.prune(entries[0].model, "scope", keep=4), divevlm.prune(entries[1].model, "dive", keep=5):
        work = [
            (entry, given, how) for entry in entries for given in requests(entry) for how in ("forward", "generate")
        ]
        want = alone(work)
        order = [n % len(work) for n in range(CALLS)]
        random.Random(0).shuffle(order)
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(lambda n: call(*work[n]), order))
    wrong = [n for n, result in zip(order, results, strict=True) if not same(result, want[n])]
    assert not wrong


@pytest.mark.parametrize("name", ["llava_onevision", "qwen2_vl", "qwen3_vl", "internvl", "idefics3"])
def test_every_family_in_threads(name):
    entry = build(name)
    with divevlm.prune(entry.model, keep=4):
        work = [(entry, given, how) for given in requests(entry) for how in ("forward", "generate")]
        want = alone(work)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda n: call(*work[n % len(work)]), range(96)))
    assert all(same(result, want[n % len(work)]) for n, result in enumerate(results))


@pytest.mark.parametrize("method", ["visionzip", "fastv", "sparsevlm", "tome", "pdrop"])
def test_every_kind_of_signal_belongs_to_its_thread(method):
    entry = build("llava")
    with divevlm.prune(entry.model, method, keep=4):
        work = [(entry, given, "forward") for given in requests(entry)]
        want = alone(work)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda n: call(*work[n % len(work)]), range(96)))
    assert all(same(result, want[n % len(work)]) for n, result in enumerate(results))


def test_a_thread_reads_its_own_report():
    entry = build("llava_next")
    asked = requests(entry)[:4]
    barrier = threading.Barrier(4)

    def kept(given):
        barrier.wait()
        for _ in range(5):
            call(entry, given, "forward")
        barrier.wait()
        return session.report.samples

    with divevlm.prune(entry.model, keep=5) as session:
        want = []
        for given in asked:
            call(entry, given, "forward")
            want.append(session.report.samples)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(kept, asked))
    assert results == want


def test_a_failure_in_one_thread_is_its_own():
    entry = build("llava")
    good = requests(entry)[0]
    bad = {**good, "attention_mask": good["attention_mask"][:, 1:]}
    with divevlm.prune(entry.model, keep=4):
        want = call(entry, good, "forward")

        def either(n):
            if n % 3:
                return same(call(entry, good, "forward"), want)
            with pytest.raises((ValueError, RuntimeError, IndexError)):
                call(entry, bad, "forward")
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(either, range(90)))


def test_sessions_that_overlap_in_time_leave_in_any_order():
    one, two = build("llava"), build("llava", seed=1)
    given = requests(one)[0]
    with torch.no_grad():
        bare = [entry.model(**given).logits for entry in (one, two)]
    first, second = (divevlm.attach(entry.model, "scope", keep=4) for entry in (one, two))
    pruned = call(two, given, "forward")
    first.detach()
    assert same(call(two, given, "forward"), pruned)
    second.detach()
    with torch.no_grad():
        assert all(torch.equal(entry.model(**given).logits, want) for entry, want in zip((one, two), bare, strict=True))
