// Why a token was picked or not, in words and in two small charts; and what is left of the prompt.

function make(name, text, classes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (classes) element.className = classes;
  return element;
}

function traceOf(run, token) {
  return (run.traces ?? []).find((trace) => trace && trace.column.has(token));
}

function reasons(run, step, token) {
  const trace = traceOf(run, token), last = Math.min(step, run.steps);
  const name = named(token)[0].toUpperCase() + named(token).slice(1);
  if (!trace) {
    const kept = run.keptSet.has(token);
    const why = run.all ? ` The budget is enough for all ${run.keep} tokens.` : run.traces ? "" : ` ${run.label} ranks tokens its own way and leaves no steps to look at: ${run.about}`;
    return [`${name} is ${kept ? "kept" : "dropped"}.${why}`];
  }
  const column = trace.column.get(token), order = trace.order, picked = order.indexOf(token);
  const at = trace.row((picked >= 0 ? Math.min(last, picked + 1) : Math.min(last, order.length)) - 1);
  const frozen = trace.steps.length === 1 && order.length > 1;
  const told = frozen ? Math.min(last, order.length) : trace.steps[at] + 1, winner = order[told - 1];
  const values = (which) => `score ${which.score.toPrecision(3)} (energy ${which.energy.toPrecision(3)}, alignment ${which.alignment.toPrecision(3)})`;
  const valuesAt = (index) => ({ score: trace.scores.at(at, index), energy: trace.energy.at(at, index), alignment: trace.alignment.at(at, index) });
  const mine = valuesAt(column), lines = [];
  if (picked >= 0) lines.push(`${name} is ${last > picked ? "picked" : "not picked yet: it will be"} at step ${picked + 1}.`);
  else lines.push(`${name} is not among the ${order.length} picks.`);
  if (token === winner) lines.push(`At step ${told} nobody has more: ${values(mine)}.`);
  else {
    let ahead = 0;
    const gone = new Set(order.slice(0, told - 1)); // in a frozen map picked tokens keep their scores
    trace.tokens.forEach((other, index) => { if (!gone.has(other) && trace.scores.at(at, index) > mine.score) ahead++; });
    lines.push(`At step ${told} it has ${values(mine)}; ${named(winner)} has ${values(valuesAt(trace.column.get(winner)))} and is picked. ${ahead} ${ahead === 1 ? "token is" : "tokens are"} ahead of it.`);
  }
  const start = trace.energy.at(0, column), left = mine.energy;
  if (!frozen && start > 0) {
    let most = 0, whose = 0;
    for (let row = 0; row < at; row++) {
      const share = trace.explained.at(row, column);
      if (share > most) { most = share; whose = row; }
    }
    const best = most > 0 && at > 0 ? ` The largest part, ${percent(most / start)}, by pick ${trace.steps[whose] + 1}, ${named(order[trace.steps[whose]])}.` : "";
    lines.push(`The picks before explain ${percent(1 - left / start)} of its energy.${best}`);
  } else if (frozen) lines.push("Scores are frozen: no pick ever changes another token's score.");
  return lines;
}

function chart(title, series, steps, now, { width = 330, start = "step 1", end = "" } = {}) {
  const space = "http://www.w3.org/2000/svg", height = 166, left = 36, base = 138, head = 40;
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  const top = Math.max(1e-9, ...series.flatMap(({ values }) => values));
  const last = Math.max(1, steps[steps.length - 1]);
  svg.setAttribute("aria-label", `${title}: ${series.map(({ name, values }) => `${name} from ${values[0].toPrecision(2)} to ${values[values.length - 1].toPrecision(2)}`).join("; ")}`);
  const add = (name, attributes, text) => {
    const element = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    svg.append(element);
  };
  const x = (step) => left + ((width - left - 8) * step) / last, y = (value) => base - (base - head) * (value / top);
  add("text", { class: "title", x: 0, y: 11 }, title);
  add("path", { class: "axis", fill: "none", d: `M${left} ${head}V${base}H${width - 8}` });
  add("text", { x: left - 4, y: head + 6, "text-anchor": "end" }, top.toPrecision(2));
  add("text", { x: left - 4, y: base, "text-anchor": "end" }, "0");
  add("text", { x: left, y: base + 14 }, start);
  add("text", { x: width - 8, y: base + 14, "text-anchor": "end" }, end || String(last + 1));
  add("line", { class: "now", y1: head, y2: base });
  const line = svg.lastChild, mark = (step) => { for (const end of ["x1", "x2"]) line.setAttribute(end, x(step)); };
  mark(now);
  series.forEach(({ name, values }, i) => {
    add("polyline", { class: `line ${i ? "two" : "one"}`, points: values.map((value, j) => `${x(steps[j]).toFixed(1)},${y(value).toFixed(1)}`).join(" ") });
    add("text", { class: `label-${i ? "two" : "one"}`, x: i * (width / 2), y: 28 }, `${i ? "- - " : "— "}${name}`);
  });
  const step = (share) => Math.min(last, Math.max(0, Math.round(((share * width - left) * last) / (width - left - 8))));
  return { svg, step, mark };
}

function charts(run, step, token) {
  const trace = traceOf(run, token);
  if (!trace || trace.steps.length < 2) return [];
  const column = trace.column.get(token), picked = trace.order.indexOf(token);
  const until = picked < 0 ? trace.order.length - 1 : picked;
  const rows = trace.steps.map((_, row) => row).filter((row) => trace.steps[row] <= until);
  const steps = rows.map((row) => trace.steps[row]);
  if (rows.length < 2) return [];
  const winners = rows.map((row) => trace.scores.max(row)), now = Math.min(step - 1, steps[steps.length - 1]);
  return [
    chart(`Token ${token} under ${run.label}: score`, [{ name: "its score", values: rows.map((row) => trace.scores.at(row, column)) }, { name: "score of the pick", values: winners }], steps, now).svg,
    chart(`Token ${token} under ${run.label}: energy, alignment`, [{ name: "its energy", values: rows.map((row) => trace.energy.at(row, column)) }, { name: "its alignment", values: rows.map((row) => trace.alignment.at(row, column)) }], steps, now).svg,
  ];
}

// Bars: what is left of each word after the step (filled), what this step's pick took away (the other colour).
function showWords(list, run, step) {
  const trace = (run.traces ?? []).find(Boolean);
  const items = data.words.map((word, i) => {
    const item = make("li", undefined, "word"), bar = make("span", undefined, "bar");
    const shown = word.replace(/\n/g, "\u21b5").replace(/^ $/, "\u2423");
    item.append(make("span", shown));
    if (trace && i < trace.words.width) {
      const at = Math.min(step, trace.order.length, trace.words.width ? trace.words.height : 0);
      const start = trace.words.at(0, i) || 1, before = trace.words.at(Math.max(0, at - 1), i) / start, after = trace.words.at(at, i) / start;
      for (const [name, share] of [["left", Math.min(after, before)], ["drop", Math.max(0, before - after)]]) {
        const part = make("span", undefined, name);
        part.style.width = `${100 * share}%`;
        bar.append(part);
      }
      item.append(bar);
      item.title = `${percent(after)} unresolved; this pick: ${percent(Math.max(0, before - after))}`;
      item.append(make("span", `, ${item.title}`, "unseen"));
    }
    return item;
  });
  list.replaceChildren(...items);
}
