// The controls, and what is shown when they change.

const $ = (id) => document.getElementById(id);
const first = runs.find((run) => run.traces) ?? runs[0];
const state = { a: first, b: runs.find((run) => run.method !== first.method) ?? first, compare: false, step: 1, panel: 0, token: null, cursor: null, timer: null };

const FIELDS = [["method", "Method"], ["keep", "Tokens kept"], ["lam", "\u03bb (prompt)"], ["eta", "\u03b7 (feedback)"]];

function buildSide(side) {
  const box = $(`side-${side}`), triple = make("div", undefined, "triple");
  for (const [field, title] of FIELDS) {
    const label = make("label", title), select = make("select");
    select.id = `${field}-${side}`;
    label.htmlFor = select.id;
    select.addEventListener("change", () => {
      const value = field === "method" ? select.value : select.value === "" ? null : Number(select.value);
      state[side] = nearest(state[side], field, value);
      show();
    });
    if (field === "method") box.append(label, select);
    else {
      const cell = make("div");
      cell.append(label, select);
      triple.append(cell);
    }
  }
  box.append(triple);
}

function fillSide(side) {
  const run = state[side];
  for (const [field] of FIELDS) {
    const select = $(`${field}-${side}`), values = choices(run, field);
    select.replaceChildren(...values.map((value) => {
      const option = make("option", value === null ? "\u2013" : String(value));
      option.value = value === null ? "" : String(value);
      option.selected = value === run[field];
      return option;
    }));
    select.disabled = values.length < 2;
  }
  for (const part of [...$(`side-${side}`).children].slice(1)) part.hidden = side === "b" && !state.compare;
}

// The run that the slider walks through: the one shown, or the one beside it if only that has steps.
const walked = () => (!state.a.traces && state.compare && state.b.traces ? state.b : state.a);

function told() {
  const run = walked(), { now } = picks(run, state.step);
  if (run.all) return `${run.label} keeps all ${run.keep} tokens: there is nothing to choose, and there are no steps to walk.`;
  if (!run.traces) return `${run.label} keeps ${run.keep} tokens at once; there are no steps to walk.`;
  return `Step ${state.step} of ${run.steps}${run === state.a ? "" : ` (${run.label})`}: picks ${now.map(named).join(" and ")}`;
}

function caption(run) {
  const merged = run.merges ? " (it merges the others into them)" : "";
  return `${run.label}: keeps ${run.keep} of ${data.visual}${merged}, answers \u201c${run.answer}\u201d`;
}

function drawAll() {
  const options = { kind: $("map").value, opacity: $("opacity").value / 100, cursor: state.cursor, chosen: state.token };
  const both = state.compare && options.kind !== "difference"; // a difference is one picture
  $("stage-b").hidden = !both;
  document.querySelector(".stages").classList.toggle("two", both);
  const sides = both ? [["a", state.a, state.b], ["b", state.b, state.a]] : [["a", state.a, state.compare ? state.b : null]];
  for (const [side, run, other] of sides) {
    const canvas = $(`stage-${side}`).querySelector("canvas"), step = Math.min(state.step, run.steps);
    drawStage(canvas, state.panel, run, step, { ...options, other });
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${data.panels[state.panel].label} under ${run.label}. Arrow keys move over the tokens, Enter explains one.`);
    $(`stage-${side}`).querySelector("figcaption").textContent = caption(run);
  }
  legend(options.kind);
}

function legend(kind) {
  const difference = kind === "difference", map = difference || kind === "none" || !walked().traces ? null : mapOf(walked(), state.step, kind);
  $("scale").hidden = !map;
  $("low").textContent = map ? "0" : difference ? `orange: only ${state.a.label}; blue: only ${state.compare ? state.b.label : "the other (choose one to compare with)"}; white: both` : "";
  $("high").textContent = map ? map.top.toPrecision(3) : "";
}

function showStrip() {
  $("strip").hidden = data.panels.length < 2;
  if (data.panels.length < 2) return;
  [...$("strip").children].forEach((button, number) => {
    const count = drawThumb(button.querySelector("canvas"), number, state.a, Math.min(state.step, state.a.steps));
    button.lastChild.textContent = `${data.panels[number].label}: ${count}`;
    button.setAttribute("aria-label", `${data.panels[number].label}, ${count} tokens`);
    button.setAttribute("aria-pressed", String(number === state.panel));
  });
}

function showWhy() {
  $("why-hint").hidden = state.token !== null;
  const sides = state.token === null ? [] : state.compare ? [state.a, state.b] : [state.a];
  $("why-text").replaceChildren(...sides.flatMap((run) => {
    const lines = reasons(run, state.step, state.token).map((line) => make("p", line));
    return state.compare ? [make("h3", run.label), ...lines] : lines;
  }));
  $("why-charts").replaceChildren(...sides.flatMap((run) => charts(run, state.step, state.token)));
}

function show() {
  const run = walked(), { steps } = run;
  if (!run.traces && state.timer) play(false);
  if (steps < state.step) state.step = steps;
  fillSide("a");
  fillSide("b");
  $("step").max = steps;
  for (const id of ["play", "back", "step", "on"]) $(id).hidden = !run.traces;
  $("words-note").hidden = !run.traces;
  $("step").value = state.step;
  $("told").textContent = told();
  $("step").setAttribute("aria-valuetext", told());
  [...$("answers").querySelectorAll("tr[data-run]")].forEach((row) => {
    if (Number(row.dataset.run) === state.a.number) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  });
  drawAll();
  showStrip();
  showWords($("words"), run, state.step);
  showWhy();
}

function goTo(step) {
  state.step = Math.min(Math.max(1, step), walked().steps);
  const where = picks(walked(), state.step).now.map((token) => place.get(token)?.panel);
  if (where.length && !where.includes(state.panel)) state.panel = where[0] ?? state.panel; // follow the pick to its frame
  show();
}

function play(on) {
  if (state.timer) clearInterval(state.timer);
  state.timer = on ? setInterval(() => (state.step < walked().steps ? goTo(state.step + 1) : play(false)), 400) : null;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(on));
}

function build() {
  document.title = `${data.question} \u00b7 divevlm explorer`;
  $("question").textContent = data.question;
  $("about").textContent = `${data.model} (${data.family}), ${data.visual} visual tokens, divevlm ${data.version}`;
  const notes = [make("span", undefined, "key"), " still unresolved, ", make("span", undefined, "key drop"), " explained by this pick (norm of the residual of each prompt token)"];
  $("words-note").replaceChildren(...notes);
  $("settings").open = innerWidth > 600;
  buildSide("a");
  buildSide("b");
  drawScale($("scale"));
  answersTable();
  data.panels.forEach((panel, number) => {
    const button = make("button");
    button.type = "button";
    button.append(make("canvas"), make("span"));
    button.addEventListener("click", () => { state.panel = number; state.cursor = null; show(); });
    $("strip").append(button);
  });
  $("step").addEventListener("input", () => goTo(Number($("step").value)));
  $("back").addEventListener("click", () => goTo(state.step - 1));
  $("on").addEventListener("click", () => goTo(state.step + 1));
  $("play").addEventListener("click", () => { if (!state.timer && state.step === walked().steps) goTo(1); play(!state.timer); });
  $("compare").addEventListener("change", () => { state.compare = $("compare").checked; show(); });
  for (const id of ["map", "opacity"]) $(id).addEventListener("input", drawAll);
  for (const side of ["a", "b"]) {
    const canvas = $(`stage-${side}`).querySelector("canvas");
    canvas.addEventListener("click", (event) => { state.token = tokenAt(canvas, event); state.cursor = null; show(); });
    canvas.addEventListener("keydown", (event) => {
      if (event.key.startsWith("Arrow")) state.cursor = moved(state.cursor, event.key);
      else if (event.key === "Enter" || event.key === " ") state.token = state.cursor;
      else if (event.key === "Escape") state.cursor = state.token = null;
      else return;
      event.preventDefault();
      if (event.key.startsWith("Arrow")) { canvas.setAttribute("aria-description", named(state.cursor)); drawAll(); } else show();
    });
    canvas.addEventListener("blur", () => { if (state.cursor !== null) { state.cursor = null; drawAll(); } });
  }
}

build();
loadPictures().then(() => { show(); document.body.dataset.ready = "yes"; });
