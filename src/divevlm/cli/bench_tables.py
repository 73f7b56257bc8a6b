"""The tables of `divevlm bench`."""

from __future__ import annotations

from typing import Any

from divevlm.terminal import table


def selection_table(result: dict[str, Any]) -> str:
    with_prefill = any("of_prefill" in row for row in result["rows"])
    last_but_one = "of prefill" if with_prefill else "peak / N^2"
    head = ["(N, d, M, K)", "path", "ms", "over reference", "of floor", last_but_one, "picks"]
    rows, last = [], None
    for row in result["rows"]:
        extra = f"{100 * row['of_prefill']:.1f} %" if "of_prefill" in row else ""
        rows.append(
            [
                row["shape"] if row["shape"] != last else "",
                row["path"],
                f"{row['ms']:.1f}",
                f"{row['over_reference']:.1f}x" if "over_reference" in row else f"{row['ms_per_sample']:.1f} ms each",
                f"{row['of_floor']:.2f}x" if "of_floor" in row else "",
                f"{row['peak_over_n2']:.2f}" if "peak_over_n2" in row else extra,
                {True: "equal", False: "DIFFER"}[row["same_picks"]] if "same_picks" in row else "",
            ]
        )
        last = row["shape"]
    versions = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    note = "medians of interleaved runs; floor = the product X X^T alone; picks: against float64"
    if with_prefill:
        note += "; prefill: 32 blocks of a 7B Llama in bfloat16"
    return f"{table(head, rows)}\n\n{note}; {versions}"


def methods_table(result: dict[str, Any]) -> str:
    rows, last = [], None
    for row in sorted(result["rows"], key=lambda row: (row["shape"], row["ms"])):
        shape = row["shape"] if row["shape"] != last else ""
        rows.append([shape, row["method"], f"{row['ms']:.1f}", f"{row['of_dive']:.2f}x", row["cost"]])
        last = row["shape"]
    versions = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    note = f"medians of {result['rounds']} interleaved runs on the same signals, float32; gathering them is not counted"
    return f"{table(['(N, d, M, K)', 'method', 'ms', 'of DIVE', 'cost'], rows)}\n\n{note}; {versions}"


def engine_table(result: dict[str, Any]) -> str:
    head = ["model", "method", "keep", "prefill ms", "speed-up", "bound", "of bound", "selection", "token ms",
            "of vanilla", "KV MB", "mask KB"]  # fmt: skip
    rows, last = [], None
    for row in result["rows"]:
        rows.append(
            [
                row["shape"] if row["shape"] != last else "",
                row["method"],
                str(row["keep"]),
                f"{row['prefill_ms']:.0f}",
                f"{row['speedup']:.2f}x",
                f"{row['bound']:.2f}x",
                f"{100 * row['of_bound']:.0f} %",
                f"{row['selection_ms']:.0f} ms, {100 * row['selection_of_vanilla']:.1f} %",
                f"{row['token_ms']:.1f}",
                f"{row['token_of_vanilla']:.2f}x",
                f"{row['kv_bytes'] / 2**20:.2f} {'=' if row['kv_bytes'] == row['kv_bytes_formula'] else '!='} formula",
                f"{row['mask_bytes'] / 2**10:.1f}, {row['mask_bytes_token'] / 2**10:.1f}",
            ]
        )
        last = row["shape"]
    versions = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    note = (
        "bound = prefill operations, all tokens / kept (the paper's formula); selection: share of the vanilla prefill; "
        "mask: in the last block, at the prefill and at the last token"
    )
    return f"{table(head, rows)}\n\n{note}\nmedians of {result['rounds']} interleaved runs, float32, random weights; {versions}"


def vllm_table(result: dict[str, Any]) -> str:
    head = ["pictures", "method", "prompt tokens", "first token ms", "requests/s", "of vanilla"]
    rows = [
        [
            row["pictures"],
            row["method"],
            f"{row['prompt_tokens']:.0f}",
            f"{row['first_token_ms']:.0f}",
            f"{row['requests_per_second']:.2f}",
            f"{row['over_vanilla']:.2f}x",
        ]
        for row in result["rows"]
    ]
    load, versions = result["load"], ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    note = (
        f"{load['clients']} clients, medians of {load['rounds']} rounds alternating between two running servers; random model of "
        f"{load['layers']} blocks, d {load['width']}, float32; K/N = {load['keep']}/{result['tokens']}; one picture: a further "
        "question on a picture already asked about, whose prefix vanilla vLLM has cached"
    )
    return f"{table(head, rows)}\n\n{note}; {versions}"
