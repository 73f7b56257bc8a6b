// The table of answers: a click shows that setting, the other button puts it beside.

const right = (text) => data.gold !== null && text.trim().toLowerCase().replace(/\.$/, "") === data.gold.trim().toLowerCase().replace(/\.$/, "");

// An answer, with what it is worth where the right one is known.
function verdict(text) {
  const shown = make("span", `\u201c${text}\u201d`);
  if (data.gold === null) return [shown];
  return [shown, make("span", right(text) ? " \u2713 correct" : ` \u2717 (correct: ${data.gold})`, right(text) ? "right" : "wrong")];
}

function answersTable() {
  const size = (bytes) => (bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MB` : `${(bytes / 2 ** 10).toFixed(1)} KB`);
  const ms = (value) => (value === null ? "\u2013" : `${value} ms`);
  const head = make("tr"), body = make("tbody"), top = make("thead");
  const columns = [["kept by", ""], ["answer", ""], ["tokens", "number"], ["KV cache", "number rare"], ["first token", "number rare"], ["each next", "number rare"], ["", "number"]];
  for (const [name, classes] of columns) {
    const cell = make("th", name, classes);
    cell.scope = "col";
    head.append(cell);
  }
  const line = (run, label, kept, bytes) => {
    const row = make("tr"), first = make("th"), answer = make("td", undefined, "answer"), last = make("td", undefined, "number");
    first.scope = "row";
    answer.append(...verdict(run.answer));
    if (run.number === undefined) first.textContent = label;
    else {
      row.dataset.run = run.number;
      first.append(button(label, `Show ${label}`, () => choose("a", run)));
      last.append(button("beside", `Put ${label} beside`, () => choose("b", run)));
      row.addEventListener("click", (event) => { if (!event.target.closest("button")) choose("a", run); });
    }
    row.append(first, answer, make("td", String(kept), "number"), make("td", bytes, "number rare"), make("td", ms(run.first_ms), "number rare"), make("td", ms(run.token_ms), "number rare"), last);
    return row;
  };
  if (data.full) body.append(line(data.full, "all tokens", data.visual, runs[0] ? size(runs[0].kv_bytes_full) : ""));
  body.append(...runs.map((run) => line(run, run.label, run.keep, size(run.kv_bytes))));
  top.append(head);
  $("answers").append(top, body);
  $("times").textContent = "Times are of one run each, on the machine that made this page.";
}

function button(text, name, action) {
  const made = make("button", text);
  made.type = "button";
  made.setAttribute("aria-label", name);
  made.addEventListener("click", action);
  return made;
}

function choose(side, run) {
  const other = side === "a" ? "b" : "a";
  if (state[other] === run) state[other] = state[side]; // never the same one twice
  state[side] = run;
  if (side === "b") state.compare = true;
  goTo(run.steps);
}
