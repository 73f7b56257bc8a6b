"use strict";
// What the page knows: settings that were run, and their maps.

const data = JSON.parse(document.getElementById("data").textContent);

function decoded(packed) {
  const text = atob(packed.bytes);
  const bytes = Uint8Array.from(text, (sign) => sign.charCodeAt(0));
  const width = packed.scales.length ? bytes.length / packed.scales.length : 0;
  return {
    width,
    height: packed.scales.length - 1,
    max: (row) => packed.scales[row] ?? 0,
    at: (row, column) => (bytes[row * width + column] * packed.scales[row]) / 255,
  };
}

// A trace of competing tokens. `steps` are those whose maps are stored; `row(step)` finds the last stored one before.
function openTrace(packed) {
  if (!packed) return null;
  const tokens = packed.tokens.flatMap(([first, count]) => Array.from({ length: count }, (_, i) => first + i));
  const trace = { tokens, order: packed.order, steps: packed.steps, column: new Map(tokens.map((token, i) => [token, i])), left: packed.left, open: packed.open };
  for (const name of ["scores", "alignment", "energy", "explained", "words"]) trace[name] = decoded(packed[name]);
  trace.row = (step) => {
    let row = 0;
    while (row + 1 < packed.steps.length && packed.steps[row + 1] <= step) row++;
    return row;
  };
  return trace;
}

const traces = data.traces.map((groups) => groups.map(openTrace));
const runs = data.runs.map((run, number) => {
  // a trace that is shared may be longer than the run: each run has its own picks
  const own = run.trace === null ? null : traces[run.trace].map((trace, i) => trace && { ...trace, order: run.segments[i].order });
  const walked = run.segments.filter((_, i) => !own || own[i]);
  return { ...run, number, keptSet: new Set(run.kept), traces: own, steps: Math.max(1, ...walked.map(({ order }) => order.length)) };
});

// The run that has `value` for `field` and else is as near as can be to what is shown.
function nearest(now, field, value) {
  const alike = (run) => ["method", "keep", "lam", "eta"].filter((name) => run[name] === now[name]).length;
  const fitting = runs.filter((run) => run[field] === value && (field === "method" || run.method === now.method));
  return fitting.reduce((best, run) => (alike(run) > alike(best) ? run : best));
}

function choices(run, field) {
  const among = field === "method" ? runs : runs.filter((other) => other.method === run.method);
  const values = [...new Set(among.map((other) => other[field]))];
  return field === "method" ? values : values.sort((a, b) => a - b);
}

// Tokens picked before and at a step (1, 2, ...): earlier ones with their numbers, and the newest of each group. Where all
// tokens of a group stay nothing is picked: they are there from the start, without a number.
function picks(run, step) {
  const earlier = new Map(), now = [];
  run.segments.forEach(({ order }, group) => {
    if (run.traces && !run.traces[group]) return order.forEach((token) => earlier.set(token, ""));
    order.slice(0, step - 1).forEach((token, i) => earlier.set(token, i + 1));
    if (step <= order.length) now.push(order[step - 1]);
  });
  return { earlier, now };
}

const place = new Map(); // token -> panel, row, column, box
data.panels.forEach((panel, number) => {
  for (const [first, rows, columns, newlines, left, top, width, height] of panel.grids) {
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const wide = width / columns, high = height / rows;
        const box = [left + column * wide, top + row * high, wide, high];
        const whole = panel.grids.length > 1 ? { row: Math.round(box[1] / high), column: Math.round(box[0] / wide) } : { row, column };
        place.set(first + row * (columns + newlines) + column, { panel: number, ...whole, box });
      }
    }
  }
});

function named(token) {
  const at = place.get(token);
  if (!at) return `token ${token}`;
  const where = data.panels.length > 1 ? `${data.panels[at.panel].label}, ` : "";
  return `token ${token} (${where}row ${at.row + 1}, column ${at.column + 1})`;
}

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;
