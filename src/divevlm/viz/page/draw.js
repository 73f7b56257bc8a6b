// Drawing: a picture, coloured cells, numbered picks.

const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
const BLUE = [0, 114, 178], ORANGE = [230, 159, 0], WHITE = [255, 255, 255];

function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, i) => value + (VIRIDIS[low + 1][i] - value) * (at - low));
}

const rgba = ([red, green, blue], alpha) => `rgba(${red}, ${green}, ${blue}, ${alpha})`;

function loadPictures() {
  return Promise.all(data.panels.map(async (panel) => {
    const image = new Image();
    image.src = panel.picture;
    await image.decode();
    panel.image = image;
  }));
}

function fit(canvas, panel, longer) {
  const scale = longer / Math.max(panel.width, panel.height);
  const width = Math.round(panel.width * scale), height = Math.round(panel.height * scale);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  return canvas.getContext("2d");
}

// The value of each token on a map, and the largest one of the whole map; null where there is none.
function mapOf(run, step, kind) {
  if (!run.traces || !["scores", "energy", "alignment", "explained"].includes(kind)) return null;
  const values = new Map();
  let top = 0;
  for (const trace of run.traces) {
    if (!trace) continue;
    const row = trace.row(Math.min(step, trace.order.length) - 1);
    trace.tokens.forEach((token, column) => values.set(token, trace[kind].at(row, column)));
    top = Math.max(top, trace[kind].max(row));
  }
  return { values, top };
}

function drawStage(canvas, panelNumber, run, step, { kind, opacity, cursor, chosen, other, longer = 720 }) {
  const panel = data.panels[panelNumber], context = fit(canvas, panel, longer);
  const { width, height } = canvas, { earlier, now } = picks(run, step);
  context.drawImage(panel.image, 0, 0, width, height);
  const shown = [...place].filter(([, at]) => at.panel === panelNumber);
  dimOutside(context, panel, width, height);
  const rectangle = ([left, top, wide, high]) => [left * width, top * height, wide * width, high * height];
  const map = mapOf(run, step, kind);
  const kept = (token) => (run.traces ? earlier.has(token) || now.includes(token) : run.keptSet.has(token));
  for (const [token, { box }] of shown) {
    const fill = kind === "difference" ? difference(token, run, other, opacity) : cellFill(token, map, kept(token), kind, opacity);
    if (fill) { context.fillStyle = fill; context.fillRect(...rectangle(box)); }
  }
  for (const [token, { box }] of shown) {
    const [x, y, w, h] = rectangle(box);
    if (kind === "difference") continue;
    if (kind !== "kept" && (run.traces ? earlier.has(token) : run.keptSet.has(token))) outline(context, [x, y, w, h], "white", 2);
    if (run.traces && earlier.has(token)) number(context, earlier.get(token), x, y, w, h);
  }
  for (const [token, { box }] of shown) {
    if (run.traces && now.includes(token)) outline(context, rectangle(box), rgba(ORANGE, 1), 4);
    if (token === chosen) outline(context, rectangle(box), "#ff4fd8", 4);
    if (token === cursor) outline(context, rectangle(box), "#00e5ff", 3);
  }
}

function difference(token, run, other, opacity) {
  const mine = run.keptSet.has(token), theirs = other ? other.keptSet.has(token) : false;
  if (!mine && !theirs) return `rgba(0, 0, 0, ${0.6 * opacity})`;
  return rgba(mine && theirs ? WHITE : mine ? ORANGE : BLUE, 0.35 + 0.65 * opacity);
}

function cellFill(token, map, kept, kind, opacity) {
  if (kind === "none") return null;
  if (kind === "kept" || !map) return kept ? null : `rgba(12, 14, 18, ${0.2 + 0.7 * opacity})`;
  return map.values.has(token) ? rgba(colour(map.top ? map.values.get(token) / map.top : 0), opacity) : null;
}

// What the model does not see of a picture (cropped away).
function dimOutside(context, panel, width, height) {
  if (panel.grids.length > 1) return;
  const [, , , , left, top, wide, high] = panel.grids[0];
  context.fillStyle = "rgba(120, 120, 120, 0.75)";
  context.fillRect(0, 0, left * width, height);
  context.fillRect((left + wide) * width, 0, width, height);
  context.fillRect(0, 0, width, top * height);
  context.fillRect(0, (top + high) * height, width, height);
}

function outline(context, [x, y, w, h], style, thick) {
  context.lineWidth = thick + 2;
  context.strokeStyle = "rgba(0, 0, 0, 0.8)";
  context.strokeRect(x + 1, y + 1, w - 2, h - 2);
  context.lineWidth = thick;
  context.strokeStyle = style;
  context.strokeRect(x + 1, y + 1, w - 2, h - 2);
}

function number(context, value, x, y, w, h) {
  if (Math.min(w, h) < 22) return;
  context.font = `bold ${Math.round(Math.min(w, h, 60) * 0.48)}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 4;
  context.strokeStyle = "rgba(0, 0, 0, 0.85)";
  context.strokeText(value, x + w / 2, y + h / 2 + 1);
  context.fillStyle = "white";
  context.fillText(value, x + w / 2, y + h / 2 + 1);
}

function drawThumb(canvas, panelNumber, run, step) {
  const panel = data.panels[panelNumber], context = fit(canvas, panel, 168);
  const { width, height } = canvas, { earlier, now } = picks(run, step);
  context.drawImage(panel.image, 0, 0, width, height);
  context.fillStyle = "rgba(0, 0, 0, 0.45)";
  context.fillRect(0, 0, width, height);
  let count = 0;
  for (const [token, { panel: where, box: [left, top, wide, high] }] of place) {
    const newest = run.traces && now.includes(token);
    if (where !== panelNumber || !(newest || (run.traces ? earlier.has(token) : run.keptSet.has(token)))) continue;
    context.fillStyle = newest ? rgba(ORANGE, 1) : rgba(WHITE, 0.85);
    context.fillRect(left * width, top * height, Math.max(2, wide * width - 1), Math.max(2, high * height - 1));
    count++;
  }
  return count;
}

function drawScale(canvas) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = rgba(colour(x / (canvas.width - 1)), 1);
    context.fillRect(x, 0, 1, canvas.height);
  }
}
