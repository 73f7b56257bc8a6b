"""Which samples a limit takes."""

from collections import Counter

import pytest

from divevlm.experiments.limits import Limits, chosen, spread

SIZES = {"many": 60, "some": 30, "few": 9, "one": 1}
CATEGORIES = [name for name, size in SIZES.items() for _ in range(size)]


@pytest.mark.parametrize("limit", [1, 4, 10, 50, 99])
def test_every_category_is_asked_and_the_rest_in_proportion(limit):
    found = Counter(CATEGORIES[number] for number in chosen(100, limit, categories=CATEGORIES))
    assert sum(found.values()) == max(limit, len(SIZES))
    for name, size in SIZES.items():
        assert abs(found[name] - size * limit / 100) <= 2
        assert found[name] >= 1


def test_a_larger_limit_asks_the_same_and_more():
    small, large = (set(chosen(100, limit, 3, CATEGORIES)) for limit in (20, 40))
    assert small < large
    assert small != set(chosen(100, 20, 4, CATEGORIES))
    assert chosen(100, None) == chosen(100, 100) == chosen(100, 1000) == list(range(100))


def test_what_belongs_together_is_asked_together():
    units = [number // 2 for number in range(100)]
    found = chosen(100, 25, 0, CATEGORIES, units)
    assert len(found) in (24, 25)
    assert all(number ^ 1 in found for number in found)
    assert len(chosen(10, 1, 0, None, [0] * 10)) == 10


def test_limits_are_read_by_task_or_column():
    found = Limits.parse("VQAv2=2000,mme=all,500")
    assert [found.of(task) for task in ("vqav2_val", "mme", "pope")] == [2000, None, 500]
    assert Limits.parse("vqav2=2000,all").of("gqa") is None
    assert Limits.parse(None) == Limits.parse("all") == Limits()
    for wrong in ("0", "-1", "some", "mme=", "=3", "mme=0", "3,4", ""):
        with pytest.raises(ValueError, match=r"limit must be a count of at least 1 or all, or TASK=COUNT"):
            Limits.parse(wrong) if wrong else Limits.parse(",")


def test_a_group_shares_its_limit():
    assert spread(7, 3) == [3, 2, 2]
    assert spread(1, 3) == [1, 1, 1]
    assert spread(None, 2) == [None, None]
