"use strict";
// Page with a map. Texts are compressed, and only inserted as text, never as markup. Coordinates are 16-bit numbers.
const byId = (id) => document.getElementById(id);
const unpack = (id) => Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
const facts = JSON.parse(byId("facts").textContent);
const { count, extent, labels } = facts;
const packed = new Uint16Array(unpack("points").buffer);
const labelOf = new Uint16Array(unpack("labels").buffer);
const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const MAX_LISTED = 200, REACH = 14, LEVELS = 65535;
let texts = [], ids = null; // a text is a list of one part, or of the parts before, in and after its word

const dots = byId("dots"), over = byId("over"), plane = byId("plane");
const xs = new Float32Array(count), ys = new Float32Array(count);
const hidden = labels.map(() => false);
let layersDrawn = 0, width = 1, height = 1, ratio = 1, view = { x: 0, y: 0, scale: 1 }, base = 1, moved = false;
let selected = null, matching = null, lit = null, hovered = -1, isLasso = false, outline = null;

const toScreen = (i) => [(xs[i] - view.x) * view.scale + width / 2, height / 2 - (ys[i] - view.y) * view.scale];
const toPlane = (x, y) => [(x - width / 2) / view.scale + view.x, (height / 2 - y) / view.scale + view.y];
const isShown = (i) => !hidden[labelOf[i]] && (!lit || lit[i]);
const isInView = (i) => {
  const [x, y] = toScreen(i);
  return x > 0 && y > 0 && x < width && y < height;
};

function element(tag, ...content) {
  const node = document.createElement(tag);
  node.append(...content);
  if (tag === "button") node.type = "button";
  return node;
}

// --- Layers ---

function moveTo(layer, isAnimated = true) {
  const place = (i, axis) => ((packed[2 * (layer * count + i) + axis] / LEVELS) * 2 - 1) * extent;
  const goal = [xs.map((_, i) => place(i, 0)), ys.map((_, i) => place(i, 1))], from = [xs.slice(), ys.slice()];
  byId("about").textContent = [facts.layers[layer].name, facts.layers[layer].about].filter(Boolean).join(": ");
  byId("layer").setAttribute("aria-valuetext", byId("about").textContent);
  const turn = ++layersDrawn, start = performance.now();
  const step = () => {
    if (turn !== layersDrawn) return; // Another layer was selected.
    const share = isAnimated && !isCalm ? Math.min(1, (performance.now() - start) / 350) : 1;
    const eased = share * share * (3 - 2 * share);
    [xs, ys].forEach((values, axis) => values.forEach((_, i) => (values[i] = from[axis][i] + (goal[axis][i] - from[axis][i]) * eased)));
    draw();
    if (share < 1) setTimeout(step, 16);
  };
  setHovered(-1);
  step();
}

function nearest(x, y) {
  let best = -1, smallest = REACH * REACH;
  for (let i = 0; i < count; i++) {
    const [left, top] = toScreen(i), distance = (left - x) ** 2 + (top - y) ** 2;
    if (distance < smallest && isShown(i)) [best, smallest] = [i, distance];
  }
  return best;
}

// --- Drawing ---

function radius() {
  const size = count < 500 ? 4.5 : count < 4000 ? 3.2 : count < 15000 ? 2.3 : 1.7;
  return size * Math.min(2.2, Math.max(1, Math.sqrt(view.scale / base)));
}

function draw() {
  const pen = dots.getContext("2d"), size = radius() * ratio, middle = Math.ceil(size) + 1;
  // Draw each point as a copy of an image of its color, which is faster than a path per point.
  const stamps = labels.map(({ color }) => {
    const stamp = new OffscreenCanvas(2 * middle, 2 * middle), brush = stamp.getContext("2d");
    brush.fillStyle = color;
    brush.arc(middle, middle, size, 0, 7);
    brush.fill();
    return stamp;
  });
  pen.clearRect(0, 0, dots.width, dots.height);
  for (const isBright of lit ? [false, true] : [true]) {
    pen.globalAlpha = isBright ? 0.75 : 0.09;
    for (let i = 0; i < count; i++) {
      if (hidden[labelOf[i]] || isShown(i) !== isBright || !isInView(i)) continue;
      const [x, y] = toScreen(i);
      pen.drawImage(stamps[labelOf[i]], x * ratio - middle, y * ratio - middle);
    }
  }
  drawOver();
}

function drawOver() {
  const pen = over.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.strokeStyle = getComputedStyle(document.body).color;
  pen.lineWidth = 2;
  pen.beginPath();
  if (hovered >= 0) pen.arc(...toScreen(hovered), radius() + 3, 0, 7);
  for (const [x, y] of outline ?? []) pen.lineTo((x - view.x) * view.scale + width / 2, height / 2 - (y - view.y) * view.scale);
  pen.closePath();
  pen.setLineDash(outline ? [5, 4] : []);
  pen.stroke();
}

function fit() {
  const ends = [xs, ys].map((values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]);
  const [across, down] = ends.map(([low, high]) => high - low || 1);
  base = 0.92 * Math.min(width / across, height / down);
  view = { x: (ends[0][0] + ends[0][1]) / 2, y: (ends[1][0] + ends[1][1]) / 2, scale: base };
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

function resize() {
  if (!plane.clientWidth) return; // The page has no layout yet, as in a hidden frame.
  [width, height, ratio] = [plane.clientWidth, plane.clientHeight, devicePixelRatio || 1];
  for (const canvas of [dots, over]) [canvas.width, canvas.height] = [width * ratio, height * ratio];
  if (moved) draw();
  else fit();
}

// --- Texts: hovered, found by a search, and selected ---

function describe(i) {
  const [before, word, after] = texts[i] ?? [""], body = element("bdi", before);
  body.dir = "auto";
  if (word) body.append(element("mark", word), after);
  const label = labels.length > 1 ? `${labels[labelOf[i]].name} \u00b7 ` : "";
  return [body, element("small", `${label}row ${ids ? ids[i] : i}`)];
}

function setHovered(i) {
  if (i === hovered) return;
  hovered = i;
  const box = byId("hover");
  box.hidden = i < 0;
  if (i >= 0) {
    box.replaceChildren(...describe(i));
    const [x, y] = toScreen(i), [wide, high] = [box.offsetWidth, box.offsetHeight];
    box.style.left = `${Math.max(4, Math.min(width - wide - 4, x + 14))}px`;
    box.style.top = `${y + high + 18 < height ? y + 14 : Math.max(4, y - high - 14)}px`;
  }
  drawOver();
}

function refresh() {
  lit = selected || matching ? Uint8Array.from(xs, (_, i) => +((!selected || selected[i]) && (!matching || matching[i]))) : null;
  draw();
  const list = [...(lit ?? []).keys()].filter(isShown), totals = labels.map(() => 0);
  for (const i of list) totals[labelOf[i]]++;
  byId("found").textContent = lit ? `${list.length.toLocaleString("en")} selected` : "";
  byId("chosen").hidden = !lit;
  byId("chosen-title").textContent = `${list.length.toLocaleString("en")} of ${count.toLocaleString("en")} points`;
  byId("counts").replaceChildren(...labels.flatMap(({ name, color }, number) => {
    if (!totals[number]) return [];
    const share = Math.round((100 * totals[number]) / list.length);
    return [element("li", swatch(color), ` ${name}: ${totals[number].toLocaleString("en")} (${share}%)`)];
  }));
  byId("texts-list").replaceChildren(...list.slice(0, MAX_LISTED).map((i) => {
    const button = element("button", ...describe(i));
    button.addEventListener("focus", () => setHovered(i));
    button.addEventListener("click", () => { pan(xs[i] - view.x, ys[i] - view.y); setHovered(-1); setHovered(i); });
    return element("li", button);
  }));
  byId("more").textContent = list.length > MAX_LISTED ? `The first ${MAX_LISTED} are listed.` : "";
}

function swatch(color) {
  const dot = element("i");
  dot.style.background = color;
  return dot;
}

function choose(test) {
  selected = Uint8Array.from(xs, (_, i) => +(!hidden[labelOf[i]] && test(i)));
  refresh();
}

function isInside(x, y, corners) {
  let inside = false;
  corners.forEach(([xi, yi], i) => {
    const [xj, yj] = corners.at(i - 1);
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  });
  return inside;
}

function search(typed) {
  const sought = typed.trim().toLowerCase();
  matching = sought ? Uint8Array.from(texts, (parts) => +parts.join("").toLowerCase().includes(sought)) : null;
  refresh();
}

function clear() {
  byId("search").value = "";
  selected = matching = outline = null;
  setLasso(false);
  refresh();
}

function setLasso(isOn) {
  isLasso = isOn;
  byId("lasso").setAttribute("aria-pressed", String(isOn));
}

function listLabels() {
  const show = (test) => {
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(!(hidden[number] = !test(number)))));
    setHovered(-1);
    refresh();
  };
  const buttons = labels.map(({ name, color, count: total }, number) => {
    const button = element("button", swatch(color), element("bdi", name), element("span", total.toLocaleString("en")));
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => show((other) => (other === number ? hidden[number] : !hidden[other])));
    return button;
  });
  byId("all").addEventListener("click", () => show(() => true));
  byId("none").addEventListener("click", () => show(() => false));
  byId("legend").hidden = labels.length < 2;
  byId("legend").append(...buttons);
}

// --- Pictures ---

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Return the lines below a picture, which describe the layer and the first labels: text, color of the swatch, and y.
function captions() {
  const named = labels.filter((_, number) => !hidden[number]).slice(0, 12);
  return [{ name: byId("about").textContent }, ...named].map(({ name, color }, line) => [name, color, height + 18 + 20 * line]);
}

function paint() {
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), lines = captions();
  [canvas.width, canvas.height] = [dots.width, dots.height + (8 + 20 * lines.length) * ratio];
  pen.fillStyle = styleOf("--card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(dots, 0, 0);
  pen.scale(ratio, ratio);
  pen.font = "13px system-ui, sans-serif";
  for (const [text, color, y] of lines) {
    pen.fillStyle = color ?? "transparent";
    pen.fillRect(10, y - 9, 9, 9);
    pen.fillStyle = styleOf("--ink");
    pen.fillText(text, 26, y);
  }
  return canvas;
}

function drawing() {
  const plain = (text) => text.replace(/[\u0000-\u001f\u007f\ud800-\udfff\ufffe\uffff]/gu, " ").replace(/[&<>"]/g, (mark) => `&#${mark.charCodeAt(0)};`);
  const lines = captions(), tall = height + 8 + 20 * lines.length, groups = labels.map(() => []);
  for (let i = 0; i < count; i++) {
    const [x, y] = toScreen(i).map((place) => place.toFixed(1));
    if (isShown(i) && isInView(i)) groups[labelOf[i]].push(`<circle cx="${x}" cy="${y}" r="${radius().toFixed(1)}"/>`);
  }
  const circles = groups.map((points, number) => `<g fill="${labels[number].color}" fill-opacity=".75">${points.join("")}</g>`);
  const legend = lines.map(([text, color, y]) =>
    `<rect x="10" y="${y - 9}" width="9" height="9" fill="${color ?? "none"}"/><text x="26" y="${y}" fill="${styleOf("--ink")}">${plain(text)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${tall}" width="${width}" height="${tall}" font-family="system-ui, sans-serif" font-size="13">` +
    `<rect width="100%" height="100%" fill="${styleOf("--card")}"/>${circles.join("")}${legend.join("")}</svg>`;
}

function download(blob, ending) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = `map.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// --- Pointers, keys and the start ---

const pointers = new Map();
const position = (event) => [event.clientX - over.getBoundingClientRect().left, event.clientY - over.getBoundingClientRect().top];

over.addEventListener("pointerdown", (event) => {
  if (event.isTrusted) over.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, position(event));
  outline = pointers.size === 1 && (isLasso || event.shiftKey) ? [toPlane(...position(event))] : null;
  setHovered(-1);
});
over.addEventListener("pointermove", (event) => {
  const [x, y] = position(event), last = pointers.get(event.pointerId);
  if (!last) return setHovered(nearest(x, y));
  if (outline) { outline.push(toPlane(x, y)); return drawOver(); }
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  pointers.set(event.pointerId, [x, y]);
  if (!other) return pan((last[0] - x) / view.scale, (y - last[1]) / view.scale);
  const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
  zoom(apart([x, y]) / apart(last), (x + other[0]) / 2, (y + other[1]) / 2);
});
const release = (event) => {
  const drawn = outline;
  outline = null;
  pointers.delete(event.pointerId);
  if (event.type === "pointerup" && drawn?.length > 2) choose((i) => isInside(xs[i], ys[i], drawn));
  else if (event.type === "pointerup" && event.pointerType === "touch") setHovered(nearest(...position(event)));
  drawOver();
};
over.addEventListener("pointerup", release);
over.addEventListener("pointercancel", release);
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
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit, l: () => setLasso(!isLasso), Escape: clear,
  }[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
const clicks = {
  in: () => zoom(1.4), out: () => zoom(1 / 1.4), fit, lasso: () => setLasso(!isLasso), clear,
  inside: () => { choose(isInView); byId("chosen-title").focus(); },
  png: () => paint().toBlob((blob) => download(blob, "png")),
  svg: () => download(new Blob([drawing()], { type: "image/svg+xml" }), "svg"),
};
for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
byId("search").addEventListener("input", (event) => search(event.target.value));
byId("layer").addEventListener("input", (event) => moveTo(Number(event.target.value)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOver);

async function start() {
  listLabels();
  moveTo(facts.layers.length - 1, false);
  new ResizeObserver(resize).observe(plane);
  resize();
  const stream = new Blob([unpack("texts")]).stream().pipeThrough(new DecompressionStream("deflate"));
  ({ texts, ids } = JSON.parse(await new Response(stream).text()));
}
const ready = start();
