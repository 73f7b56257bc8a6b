"""From lmms-eval's results to ours: numbers of a task, of each sample, and the table."""

from __future__ import annotations

import json
from typing import Any

from divevlm.checks import require
from divevlm.experiments.settings import Setting


def metrics(results: dict[str, Any], name: str) -> dict[str, float]:
    """Numbers of one task; of a group whose members have them only, their mean. Durations of Video-MME by themselves,
    OCRBench as the share of what was asked."""
    whole = _numbers(results["results"].get(name, {}))
    if not whole:
        members = [_numbers(results["results"][one]) for one in results.get("group_subtasks", {}).get(name, [])]
        members = [one for one in members if one]
        require(bool(members), "tasks", name, "one that lmms-eval computes numbers for")
        shared = set.intersection(*(set(one) for one in members))
        whole = {metric: sum(one[metric] for one in members) / len(members) for metric in sorted(shared)}
    judged = [s["ocrbench_accuracy"]["score"] for s in results["samples"].get(name, []) if "ocrbench_accuracy" in s]
    if judged:  # lmms-eval divides by 1,000 whatever was asked, and adds up all that the process has scored before
        whole["ocrbench_accuracy"] = sum(judged) / len(judged)
    for duration in ("short", "medium", "long"):
        some = [
            s["videomme_perception_score"] for s in results["samples"].get(name, []) if "videomme_perception_score" in s
        ]
        right = [float(one["pred_answer"] == one["answer"]) for one in some if one["duration"] == duration]
        if right:
            whole[duration] = sum(right) / len(right)
    return whole


def _numbers(results: dict[str, Any]) -> dict[str, float]:
    """ "exact_match,none" -> "exact_match"; standard errors and texts are left out."""
    return {
        key.split(",")[0]: float(value)
        for key, value in results.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "stderr" not in key and key != "samples"
    }


def sample_lines(results: dict[str, Any], setting: Setting, numbers: dict[str, list[int]]) -> list[str]:
    """One JSON line a sample, with what the task's metrics are computed from: a number, or what the task made of the answer.

    numbers: of the samples of each task in its whole data set
    """
    lines = []
    for task, samples in results["samples"].items():
        names = results["higher_is_better"][task]  # by metric
        for one in samples:
            sample = str(numbers[task][one["doc_id"]])
            where = {"method": setting.method, "keep": setting.keep, "task": task, "sample": sample}
            scores = {name: one[name] for name in names if name in one}
            lines.append(json.dumps({**where, "scores": scores}, default=str))
    return lines


def cells(benchmarks: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One line a setting, one column a metric."""
    by_setting = {setting: entry["tasks"] for setting, entry in benchmarks.items()}
    names = list(dict.fromkeys((t, m) for by_task in by_setting.values() for t, ms in by_task.items() for m in ms))
    head = ["setting", *(f"{task} {metric}" for task, metric in names)]
    return head, [
        [name, *(f"{by_task[t][m]:.4f}" if m in by_task.get(t, {}) else "" for t, m in names)]
        for name, by_task in by_setting.items()
    ]
