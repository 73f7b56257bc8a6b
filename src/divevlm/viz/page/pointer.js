// Which token is under the pointer, and which one an arrow key leads to.

function tokenAt(canvas, event) {
  const area = canvas.getBoundingClientRect();
  const x = (event.clientX - area.left) / area.width, y = (event.clientY - area.top) / area.height;
  for (const [token, { panel, box: [left, top, wide, high] }] of place) {
    if (panel === state.panel && x >= left && x < left + wide && y >= top && y < top + high) return token;
  }
  return null;
}

// Arrow keys: to the nearest token in that direction.
function moved(token, key) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const here = [...place].filter(([, at]) => at.panel === state.panel);
  if (token === null || place.get(token).panel !== state.panel) return (picks(state.a, state.step).now.find((one) => place.get(one)?.panel === state.panel)) ?? here[0][0];
  const middle = ([left, top, wide, high]) => [left + wide / 2, top + high / 2];
  const [x, y] = middle(place.get(token).box), size = place.get(token).box;
  const [wantX, wantY] = [x + step[0] * size[2], y + step[1] * size[3]];
  let best = token, least = Infinity;
  for (const [other, at] of here) {
    const [ox, oy] = middle(at.box), distance = Math.hypot(ox - wantX, oy - wantY);
    if (other !== token && distance < least) { least = distance; best = other; }
  }
  return least < Math.hypot(size[2], size[3]) * 0.75 ? best : token;
}
