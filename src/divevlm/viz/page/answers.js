// The table of answers.

function answersTable() {
  const head = ["kept by", "answer", "tokens", "KV cache", "first token", "each next"];
  const size = (bytes) => (bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MB` : `${(bytes / 2 ** 10).toFixed(1)} KB`);
  const ms = (value) => (value === null ? "\u2013" : `${value} ms`);
  const rows = [];
  if (data.full) rows.push([data.full, ["all tokens", data.full.answer, String(data.visual), runs[0] ? size(runs[0].kv_bytes_full) : "", ms(data.full.first_ms), ms(data.full.token_ms)]]);
  for (const run of runs) rows.push([run, [run.label, run.answer, String(run.keep), size(run.kv_bytes), ms(run.first_ms), ms(run.token_ms)]]);
  const line = (cells, name, run) => {
    const row = make("tr");
    cells.forEach((cell, i) => {
      const element = make(i === 0 ? "th" : name, cell, i === 1 ? "answer" : i > 1 ? "number" : "");
      if (name === "th") element.scope = "col";
      else if (i === 0) element.scope = "row";
      row.append(element);
    });
    if (run && run.number !== undefined) row.dataset.run = run.number;
    return row;
  };
  const top = make("thead"), body = make("tbody");
  top.append(line(head, "th"));
  body.append(...rows.map(([run, cells]) => line(cells, "td", run)));
  $("answers").append(top, body);
  $("times").textContent = "Times are of one run each, on the machine that made this page.";
}
