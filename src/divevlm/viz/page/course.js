// What is left of the picture's and of the prompt's energy after each pick; and what the page's address says.

// One line each, from before the first pick to behind the last; of several groups the mean.
function left(run) {
  const traces = (run.traces ?? []).filter(Boolean);
  const mean = (name, step) => traces.reduce((sum, trace) => sum + trace[name][Math.min(step, trace[name].length - 1)], 0) / traces.length;
  const steps = Array.from({ length: traces.length ? run.steps + 1 : 0 }, (_, step) => step);
  return { steps, visual: steps.map((step) => mean("left", step)), prompt: steps.map((step) => mean("open", step)) };
}

function showCourse(run, step) {
  const { steps, visual, prompt } = left(run), box = $("course-chart");
  $("course-title").textContent = `What is left under ${run.label}, step by step`;
  $("course").hidden = !steps.length;
  if (!steps.length) return;
  const series = [{ name: "energy of the visual tokens", values: visual }, { name: "energy of the prompt", values: prompt }];
  const drawn = chart(`Energy left under ${run.label}`, series, steps, step, { width: Math.min(880, Math.max(300, box.clientWidth)), start: "start", end: `pick ${run.steps}` });
  const at = (event) => {
    const area = drawn.svg.getBoundingClientRect();
    return drawn.step((event.clientX - area.left) / area.width);
  };
  const look = (at) => { drawn.mark(at); courseNote(run, at); showWords($("words"), run, at); };
  drawn.svg.addEventListener("pointermove", (event) => look(at(event)));
  drawn.svg.addEventListener("pointerleave", () => look(state.step));
  drawn.svg.addEventListener("click", (event) => goTo(Math.max(1, at(event))));
  box.replaceChildren(drawn.svg);
  look(step);
}

function courseNote(run, step) {
  const { visual, prompt } = left(run), trace = (run.traces ?? []).find(Boolean);
  const row = Math.min(step, trace.words.height), open = [];
  data.words.forEach((word, i) => {
    if (i < trace.words.width && /^\s*[\p{L}\p{N}]/u.test(word) && trace.words.at(0, i) > 0) open.push([trace.words.at(row, i) / trace.words.at(0, i), word.trim()]);
  });
  const most = open.sort((a, b) => b[0] - a[0]).slice(0, 4).map(([share, word]) => `${word} ${percent(share)}`);
  $("course-note").textContent = `After ${step} ${step === 1 ? "pick" : "picks"}: ${percent(visual[step])} of the visual energy and ${percent(prompt[step])} of the prompt's are left. Most open words: ${most.join(", ")}.`;
}

// #a=dive 64&b=random 64&step=4&token=47&map=scores&panel=0
function toAddress() {
  const parts = { a: state.a.label, b: state.compare ? state.b.label : "", step: state.step, token: state.token ?? "", map: $("map").value, panel: state.panel || "" };
  const text = Object.entries(parts).filter(([, value]) => value !== "").map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  try {
    history.replaceState(null, "", `#${text}`);
  } catch { /* a page inside another page has no address of its own */ }
}

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)), by = (label) => runs.find((run) => run.label === label);
  const whole = (name, most) => (/^\d+$/.test(given.get(name) ?? "") && Number(given.get(name)) <= most ? Number(given.get(name)) : null);
  if (by(given.get("a"))) {
    state.a = by(given.get("a"));
    state.compare = Boolean(by(given.get("b")));
    state.step = state.a.steps;
  }
  state.b = by(given.get("b")) ?? state.b;
  state.step = Math.max(1, whole("step", walked().steps) ?? state.step);
  state.panel = whole("panel", data.panels.length - 1) ?? state.panel;
  state.token = place.has(whole("token", Infinity)) ? whole("token", Infinity) : null;
  if ([...$("map").options].some((option) => option.value === given.get("map"))) $("map").value = given.get("map");
}
