"use strict";
// The page about the attention of one text. Texts only ever become text nodes.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function accent() {
  const probe = document.createElement("i");
  probe.style.color = "var(--accent)";
  document.body.append(probe);
  const color = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return color;
}

const count = data.tokens.length;
const ROW = 22; // pixels, as in the style
const MOST = 10; // tokens in the list
const MOST_PIXELS = 64; // of a small picture
const chosen = { layer: data.layer, head: data.head, token: null, side: "from" }; // what was clicked
const pointed = { token: null, side: "from" }; // what is hovered or has the focus
let weights, rollout;

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

// --- Weights: bytes are square roots ---

const weightOf = (byte) => (byte / data.levels) ** 2;

function byteOf(layer, head, from, to) {
  return weights[((layer * data.heads + head) * count + from) * count + to];
}

function weight(from, to) {
  const { layer, head } = chosen;
  const source = $("source").value;
  if (source === "rollout") return weightOf(rollout[(layer * count + from) * count + to]);
  if (source === "head") return weightOf(byteOf(layer, head, from, to));
  let sum = 0;
  for (let other = 0; other < data.heads; other++) sum += weightOf(byteOf(layer, other, from, to));
  return sum / data.heads;
}

const least = () => (Number($("least").value) / 100) ** 2;

// whether the filter lets a pair of tokens through, whatever its weight
function isShown(from, to) {
  const [one, other] = [data.tokens[from].segment, data.tokens[to].segment];
  if (!$("special").checked && (one === null || other === null)) return false;
  const texts = $("texts").value;
  return !texts || `${one}${other}` === texts;
}

// --- The grid of all heads ---

function drawSmall(canvas, layer, head, color) {
  const size = Math.min(count, MOST_PIXELS);
  canvas.width = canvas.height = size;
  const image = new ImageData(size, size);
  const pixels = image.data;
  for (let pixel = 0; pixel < size * size; pixel++)
    [pixels[4 * pixel], pixels[4 * pixel + 1], pixels[4 * pixel + 2]] = color;
  // a pixel that stands for several pairs of tokens shows the largest weight, so that thin lines stay
  for (let from = 0; from < count; from++)
    for (let to = 0; to < count; to++) {
      const pixel = Math.floor((from * size) / count) * size + Math.floor((to * size) / count);
      pixels[4 * pixel + 3] = Math.max(pixels[4 * pixel + 3], (255 * byteOf(layer, head, from, to)) / data.levels);
    }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function makeGrid() {
  const grid = $("grid");
  grid.append(element("span"));
  for (let head = 0; head < data.heads; head++) grid.append(element("span", head));
  for (let layer = 0; layer < data.layers; layer++) {
    grid.append(element("span", layer));
    for (let head = 0; head < data.heads; head++) {
      const button = element("button");
      button.type = "button";
      button.title = `layer ${layer}, head ${head}`;
      button.setAttribute("aria-label", button.title);
      button.dataset.layer = layer;
      button.dataset.head = head;
      button.append(element("canvas"));
      button.addEventListener("click", () => choose(layer, head));
      grid.append(button);
    }
  }
  grid.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const layer = Math.min(Math.max(chosen.layer + move[0], 0), data.layers - 1);
    const head = Math.min(Math.max(chosen.head + move[1], 0), data.heads - 1);
    choose(layer, head);
    gridButton(layer, head).focus();
  });
}

const gridButton = (layer, head) => $("grid").querySelector(`[data-layer="${layer}"][data-head="${head}"]`);

function drawGrid() {
  const color = accent();
  for (const button of $("grid").querySelectorAll("button"))
    drawSmall(button.firstChild, Number(button.dataset.layer), Number(button.dataset.head), color);
}

function choose(layer, head) {
  Object.assign(chosen, { layer, head });
  for (const button of $("grid").querySelectorAll("button")) {
    const isChosen = button === gridButton(layer, head);
    button.setAttribute("aria-pressed", isChosen);
    button.tabIndex = isChosen ? 0 : -1;
  }
  draw();
}

// --- One head: two columns of tokens, and lines between them ---

function makeColumns() {
  for (const side of ["from", "to"]) {
    const list = $(side);
    data.tokens.forEach((token, number) => {
      const button = element("button", token.text, "token");
      button.type = "button";
      button.title = `${token.text} (token ${number})`;
      if (token.segment === null) button.classList.add("special");
      if (token.segment === 1) button.classList.add("second");
      button.tabIndex = number ? -1 : 0;
      for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => point(number, side));
      for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => point(null, side));
      button.addEventListener("click", () => pin(number, side));
      const item = element("li");
      item.append(button);
      list.append(item);
    });
    list.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const buttons = [...list.querySelectorAll("button")];
      const next = buttons[buttons.indexOf(document.activeElement) + step];
      if (!next) return;
      for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
      next.focus();
    });
  }
}

function point(token, side) {
  Object.assign(pointed, { token, side });
  draw();
}

function pin(token, side) {
  const same = chosen.token === token && chosen.side === side;
  Object.assign(chosen, { token: same ? null : token, side });
  draw();
}

const active = () => (pointed.token === null ? chosen : pointed);

// the pairs that lines are drawn for: [from, to, weight]
function linesToDraw() {
  const { token, side } = active();
  const found = [];
  let total = 0;
  for (let from = 0; from < count; from++) {
    if (token !== null && side === "from" && from !== token) continue;
    for (let to = 0; to < count; to++) {
      if (token !== null && side === "to" && to !== token) continue;
      if (!isShown(from, to)) continue;
      total++;
      const value = weight(from, to);
      if (value > 0 && value >= least()) found.push([from, to, value]);
    }
  }
  return [found, total];
}

function draw() {
  const { token, side } = active();
  const [lines, total] = linesToDraw();
  const what = { head: `head ${chosen.head}`, mean: "mean of its heads", rollout: "rollout up to it" }[$("source").value];
  $("head-title").textContent = `Layer ${chosen.layer}, ${what}`;
  $("least-shown").textContent = least().toFixed(3);
  $("count").textContent = `${lines.length} of ${total} weights are at least ${least().toFixed(3)}`;
  drawLines(lines);
  const other = side === "from" ? "to" : "from";
  const shares = new Map(lines.map(([from, to, value]) => [side === "from" ? to : from, value]));
  for (const column of ["from", "to"])
    [...$(column).querySelectorAll("button")].forEach((button, number) => {
      const share = token !== null && column === other ? shares.get(number) || 0 : 0;
      button.style.setProperty("--share", Math.round(70 * Math.sqrt(share)));
      button.classList.toggle("active", number === token && column === side);
      button.setAttribute("aria-pressed", number === chosen.token && column === chosen.side);
    });
  list(token, side, lines);
}

function drawLines(lines) {
  const canvas = $("lines");
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = `${count * ROW}px`;
  canvas.width = width * scale;
  canvas.height = count * ROW * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const [red, green, blue] = accent();
  for (const [from, to, value] of lines) {
    context.beginPath();
    context.strokeStyle = `rgba(${red}, ${green}, ${blue}, ${Math.min(1, 0.08 + value)})`;
    context.lineWidth = 0.6 + 2.4 * value;
    context.moveTo(0, (from + 0.5) * ROW);
    context.bezierCurveTo(width / 2, (from + 0.5) * ROW, width / 2, (to + 0.5) * ROW, width, (to + 0.5) * ROW);
    context.stroke();
  }
}

function list(token, side, lines) {
  $("top").replaceChildren();
  if (token === null) {
    $("said").textContent = "Point at a token, or choose one";
    return;
  }
  const verb = side === "from" ? "attends to" : "is attended to by";
  $("said").textContent = `${data.tokens[token].text} ${verb}${lines.length ? "" : " nothing that the filter shows"}`;
  for (const [from, to, value] of [...lines].sort((one, other) => other[2] - one[2]).slice(0, MOST)) {
    const line = element("li");
    const meter = element("span", undefined, "meter");
    const bar = element("i");
    bar.style.setProperty("--share", (100 * value).toFixed(1));
    meter.append(bar);
    line.append(element("span", data.tokens[side === "from" ? to : from].text), meter, element("span", value.toFixed(3)));
    $("top").append(line);
  }
}

async function start() {
  if (!("DecompressionStream" in window)) {
    $("failed").hidden = false;
    return;
  }
  [weights, rollout] = await Promise.all([unpack(data.weights), unpack(data.rollout)]);
  makeGrid();
  makeColumns();
  drawGrid();
  for (const id of ["source", "least", "texts", "special"]) $(id).addEventListener("input", draw);
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawGrid(); draw(); });
  choose(data.layer, data.head);
  document.documentElement.dataset.ready = "true";
}

start();
