"use strict";
// Texts come compressed and are shown as text, never as markup. Coordinates come as 16-bit numbers, layer by layer.
const byId = (id) => document.getElementById(id);
const unpack = (id) => Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
const facts = JSON.parse(byId("facts").textContent);
const { count, extent, labels } = facts;
const packed = new Uint16Array(unpack("points").buffer);
const labelOf = new Uint16Array(unpack("labels").buffer);
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const MOST_LISTED = 200, REACH = 14, CELLS = 128, LEVELS = 65535;
let texts = [], marks = null, ids = null, lowered = null;

const dots = byId("dots"), over = byId("over"), plane = byId("plane");
const xs = new Float32Array(count), ys = new Float32Array(count);
const hidden = labels.map(() => false);
let layer = facts.layers.length - 1, layersDrawn = 0;
let width = 1, height = 1, ratio = 1, view = { x: 0, y: 0, scale: 1 }, base = 1, moved = false;
let selected = null, matching = null, lit = null, hovered = -1, lassoing = false, outline = null;

// --- Where points are ---

const coordinate = (at) => ((packed[at] / LEVELS) * 2 - 1) * extent;

function moveTo(number, animated = true) {
  layer = number;
  const goalX = Float32Array.from(xs, (_, i) => coordinate(2 * (number * count + i)));
  const goalY = Float32Array.from(ys, (_, i) => coordinate(2 * (number * count + i) + 1));
  byId("about").textContent = [facts.layers[number].name, facts.layers[number].about].filter(Boolean).join(": ");
  byId("layer").setAttribute("aria-valuetext", byId("about").textContent);
  const turn = ++layersDrawn, fromX = xs.slice(), fromY = ys.slice(), start = performance.now();
  const step = () => {
    if (turn !== layersDrawn) return;
    const share = animated && !calm ? Math.min(1, (performance.now() - start) / 350) : 1, eased = share * share * (3 - 2 * share);
    for (let i = 0; i < count; i++) {
      xs[i] = fromX[i] + (goalX[i] - fromX[i]) * eased;
      ys[i] = fromY[i] + (goalY[i] - fromY[i]) * eased;
    }
    if (share === 1) buildGrid();
    draw();
    if (share < 1) setTimeout(step, 16);
  };
  setHovered(-1);
  step();
}

const toScreen = (i) => [(xs[i] - view.x) * view.scale + width / 2, height / 2 - (ys[i] - view.y) * view.scale];
const toPlane = (x, y) => [(x - width / 2) / view.scale + view.x, (height / 2 - y) / view.scale + view.y];

// A grid over the plane, so that the nearest point is looked for among a few: `first[cell]` to `first[cell + 1]` are
// the places in `order` of the points of a cell.
let grid = null;
function buildGrid() {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < count; i++) {
    left = Math.min(left, xs[i]); right = Math.max(right, xs[i]); low = Math.min(low, ys[i]); high = Math.max(high, ys[i]);
  }
  const size = Math.max(right - left, high - low, 1e-9) / CELLS;
  const cellOf = (x, y) => Math.min(CELLS - 1, Math.max(0, ((y - low) / size) | 0)) * CELLS + Math.min(CELLS - 1, Math.max(0, ((x - left) / size) | 0));
  const first = new Int32Array(CELLS * CELLS + 1), order = new Int32Array(count);
  for (let i = 0; i < count; i++) first[cellOf(xs[i], ys[i]) + 1]++;
  for (let cell = 0; cell < CELLS * CELLS; cell++) first[cell + 1] += first[cell];
  const next = first.slice();
  for (let i = 0; i < count; i++) order[next[cellOf(xs[i], ys[i])]++] = i;
  grid = { left, right, low, high, size, first, order };
}

function nearest(screenX, screenY) {
  if (!grid) return -1;
  const [x, y] = toPlane(screenX, screenY), reach = REACH / view.scale;
  const clip = (value) => Math.min(CELLS - 1, Math.max(0, Math.floor(value)));
  const [from, to] = [clip((x - reach - grid.left) / grid.size), clip((x + reach - grid.left) / grid.size)];
  let best = -1, least = reach * reach;
  for (let row = clip((y - reach - grid.low) / grid.size); row <= clip((y + reach - grid.low) / grid.size); row++)
    for (let at = grid.first[row * CELLS + from]; at < grid.first[row * CELLS + to + 1]; at++) {
      const i = grid.order[at], distance = (xs[i] - x) ** 2 + (ys[i] - y) ** 2;
      if (distance < least && !hidden[labelOf[i]] && (!lit || lit[i])) { best = i; least = distance; }
    }
  return best;
}

// --- Drawing ---

const radius = () => (count < 500 ? 4.5 : count < 4000 ? 3.2 : count < 15000 ? 2.3 : 1.7) * Math.min(2.2, Math.max(1, Math.sqrt(view.scale / base)));

// Points are painted into an array of pixels: a stamp is the offsets of a point's pixels with their share of its color.
const colors = labels.map(({ color }) => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.fillStyle = color;
  pen.fillRect(0, 0, 1, 1);
  return pen.getImageData(0, 0, 1, 1).data;
});

function stampOf(size) {
  const stamp = [], most = Math.ceil(size);
  for (let down = -most; down <= most; down++)
    for (let right = -most; right <= most; right++) {
      const share = Math.min(1, size + 0.5 - Math.hypot(right, down));
      if (share > 0) stamp.push(right, down, share);
    }
  return Float32Array.from(stamp);
}

function draw() {
  const [wide, high] = [dots.width, dots.height], { scale } = view, stamp = stampOf(radius() * ratio);
  const image = new ImageData(wide, high), pixels = image.data;
  for (const bright of lit ? [0, 1] : [1])
    for (let i = 0; i < count; i++) {
      if (hidden[labelOf[i]] || (lit && lit[i] !== bright)) continue;
      const color = colors[labelOf[i]];
      const middle = Math.round(((xs[i] - view.x) * scale + width / 2) * ratio), level = Math.round((height / 2 - (ys[i] - view.y) * scale) * ratio);
      for (let part = 0; part < stamp.length; part += 3) {
        const across = middle + stamp[part], row = level + stamp[part + 1];
        if (across < 0 || row < 0 || across >= wide || row >= high) continue;
        const at = 4 * (row * wide + across), above = stamp[part + 2] * (bright ? 0.75 : 0.09), below = (pixels[at + 3] / 255) * (1 - above);
        for (let one = 0; one < 3; one++) pixels[at + one] = (color[one] * above + pixels[at + one] * below) / (above + below);
        pixels[at + 3] = 255 * (above + below);
      }
    }
  dots.getContext("2d").putImageData(image, 0, 0);
  drawOver();
}

function drawOver() {
  const pen = over.getContext("2d"), ink = getComputedStyle(document.body).color;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.strokeStyle = ink;
  if (hovered >= 0) {
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(...toScreen(hovered), radius() + 3, 0, 7);
    pen.stroke();
  }
  if (outline) {
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    outline.forEach(([x, y]) => pen.lineTo((x - view.x) * view.scale + width / 2, height / 2 - (y - view.y) * view.scale));
    pen.closePath();
    pen.stroke();
    pen.setLineDash([]);
  }
}

function fit() {
  if (!grid) return;
  view = { x: (grid.left + grid.right) / 2, y: (grid.low + grid.high) / 2, scale: 1 };
  view.scale = base = 0.92 * Math.min(width / (grid.right - grid.left || 1), height / (grid.high - grid.low || 1));
  moved = false;
  draw();
}

function zoom(factor, x = width / 2, y = height / 2) {
  const [before, above] = toPlane(x, y);
  view.scale = Math.min(base * 400, Math.max(base / 3, view.scale * factor));
  const [after, below] = toPlane(x, y);
  pan(before - after, above - below);
}

function pan(x, y) {
  view.x += x;
  view.y += y;
  moved = true;
  draw();
}

// --- Pointers and keys ---

const pointers = new Map();
const position = (event) => { const box = over.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

over.addEventListener("pointerdown", (event) => {
  if (event.isTrusted) over.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, position(event));
  if (pointers.size === 1 && (lassoing || event.shiftKey)) outline = [toPlane(...position(event))];
  else if (pointers.size > 1) outline = null;
  setHovered(-1);
});
over.addEventListener("pointermove", (event) => {
  const [x, y] = position(event), last = pointers.get(event.pointerId);
  if (!last) return setHovered(nearest(x, y));
  if (outline) { outline.push(toPlane(x, y)); return drawOver(); }
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  pointers.set(event.pointerId, [x, y]);
  if (other) {
    const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
    zoom(apart([x, y]) / apart(last), (x + other[0]) / 2, (y + other[1]) / 2);
  } else pan((last[0] - x) / view.scale, (y - last[1]) / view.scale);
});
for (const name of ["pointerup", "pointercancel"])
  over.addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    if (outline && name === "pointerup" && outline.length > 2) { const drawn = outline; outline = null; choose((i) => isInside(xs[i], ys[i], drawn)); }
    else if (name === "pointerup" && event.pointerType === "touch") setHovered(nearest(...position(event)));
    outline = null;
    drawOver();
  });
over.addEventListener("pointerleave", () => { if (!pointers.size) setHovered(-1); });
over.addEventListener("wheel", (event) => {
  event.preventDefault();
  setHovered(-1);
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), ...position(event));
}, { passive: false });
over.addEventListener("keydown", (event) => {
  const step = 40 / view.scale;
  const act = {
    ArrowLeft: () => pan(-step, 0), ArrowRight: () => pan(step, 0), ArrowUp: () => pan(0, step), ArrowDown: () => pan(0, -step),
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit, l: () => setLasso(!lassoing), Escape: clear,
  }[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
