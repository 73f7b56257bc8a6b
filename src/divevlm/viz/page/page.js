// The controls, and what is shown when they change.

const $ = (id) => document.getElementById(id);
const first = runs.find((run) => run.traces) ?? runs[0];
const beside = runs.find((run) => run.method !== first.method && run.keep === first.keep) ?? runs.find((run) => run.method !== first.method);
const state = { a: first, b: beside ?? first, compare: Boolean(beside), step: first.steps, panel: 0, token: null, cursor: null, timer: null };

const FIELDS = [["method", "Method"], ["keep", "Tokens"], ["lam", "\u03bb prompt"], ["eta", "\u03b7 feedback"]];

function buildSide(side) {
  for (const [field, title] of FIELDS) {
    const cell = make("div"), label = make("label", title), select = make("select");
    select.id = `${field}-${side}`;
    label.htmlFor = select.id;
    select.addEventListener("change", () => {
      const atEnd = state.step === walked().steps;
      const value = field === "method" ? select.value : select.value === "" ? null : Number(select.value);
      state[side] = nearest(state[side], field, value);
      goTo(atEnd ? walked().steps : state.step);
    });
    cell.append(label, select);
    $(`side-${side}`).append(cell);
  }
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
    select.parentElement.hidden = values.length < 2 && (field === "lam" || field === "eta");
  }
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
  return [make("span", `${run.label}: keeps ${run.keep} of ${data.visual}${merged}, answers `), ...verdict(run.answer)];
}

function drawAll() {
  const options = { kind: $("map").value, opacity: $("opacity").value / 100, cursor: state.cursor, chosen: state.token };
  $("stage-b").hidden = !state.compare;
  document.querySelector(".stages").classList.toggle("two", state.compare);
  for (const [side, run, other] of [["a", state.a, state.b], ["b", state.b, state.a]].slice(0, state.compare ? 2 : 1)) {
    const figure = $(`stage-${side}`), canvas = figure.querySelector("canvas"), step = Math.min(state.step, run.steps);
    drawStage(canvas, state.panel, run, step, { ...options, other: state.compare ? other : null });
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${data.panels[state.panel].label} under ${run.label}. Arrow keys move over the tokens, Enter explains one.`);
    figure.querySelector("figcaption").replaceChildren(...caption(run));
    legend(figure.querySelector(".legend"), run, step, options.kind);
  }
}

function legend(line, run, step, kind) {
  const map = mapOf(run, step, kind), swatch = (name, text) => { const item = make("span", text); item.prepend(make("span", undefined, `swatch ${name}`)); return item; };
  const items = [];
  if (map) {
    const scale = make("canvas");
    [scale.width, scale.height] = [120, 10];
    scale.setAttribute("aria-hidden", "true");
    drawScale(scale);
    items.push(make("span", `${$("map").selectedOptions[0].textContent}: 0`), scale, make("span", map.top.toPrecision(3)));
  } else if (kind === "difference") {
    const other = run === state.a ? state.b : state.a;
    items.push(swatch("only-a", `only ${run.label}`), ...(state.compare ? [swatch("only-b", `only ${other.label}`), swatch("bright", "both")] : []));
  } else if (kind !== "none") items.push(swatch("bright", "kept"), swatch("dim", "dropped"));
  if (kind !== "difference" && run.traces) items.push(swatch("newest", "this pick"));
  line.replaceChildren(...items);
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
  const open = state.token !== null, sides = !open ? [] : state.compare ? [state.a, state.b] : [state.a];
  $("why-hint").hidden = open;
  $("close").hidden = $("neighbours").hidden = !open;
  $("why").classList.toggle("open", open);
  document.body.classList.toggle("explains", open);
  const words = (run) => [...(state.compare ? [make("h3", run.label)] : []), ...reasons(run, state.step, state.token).map((line) => make("p", line))];
  $("why-text").replaceChildren(...sides.flatMap(words), ...sides.flatMap((run) => charts(run, state.step, state.token)));
}

function show() {
  const run = walked(), { steps } = run;
  if (!run.traces && state.timer) play(false);
  if (steps < state.step) state.step = steps;
  fillSide("a");
  fillSide("b");
  $("step").max = steps;
  for (const id of ["play", "back", "step", "on"]) $(id).hidden = !run.traces;
  $("step").value = state.step;
  $("told").textContent = told();
  $("step").setAttribute("aria-valuetext", told());
  [...$("answers").querySelectorAll("tr[data-run]")].forEach((row) => {
    if ([state.a, ...(state.compare ? [state.b] : [])].some((run) => run.number === Number(row.dataset.run))) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  });
  drawAll();
  showStrip();
  $("compare").checked = state.compare;
  showCourse(run, state.step);
  showWhy();
  toAddress();
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
  buildSide("a");
  buildSide("b");
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
  for (const id of ["map", "opacity"]) $(id).addEventListener("input", () => { drawAll(); toAddress(); });
  $("close").addEventListener("click", () => { state.token = null; show(); });
  for (const [sign, way] of [["\u2190", "Left"], ["\u2191", "Up"], ["\u2193", "Down"], ["\u2192", "Right"]]) { // a token is smaller than a finger
    $("neighbours").append(button(sign, `${way} by one token`, () => { state.token = moved(state.token, `Arrow${way}`); show(); }));
  }
  addEventListener("resize", () => showCourse(walked(), state.step));
  addEventListener("hashchange", () => { fromAddress(); show(); });
  for (const side of ["a", "b"]) {
    const canvas = $(`stage-${side}`).querySelector("canvas");
    canvas.addEventListener("click", (event) => {
      [state.token, state.cursor] = [tokenAt(canvas, event), null];
      show();
      if (state.token !== null && innerWidth <= 900) scrollBy({ top: canvas.getBoundingClientRect().top - 120 }); // above the explanation
    });
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
fromAddress();
loadPictures().then(() => { show(); document.body.dataset.ready = "yes"; });
