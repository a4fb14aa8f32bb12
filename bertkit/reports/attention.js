"use strict";
// Page about the attention of one text. Texts are only inserted as text nodes, never as markup.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const count = data.tokens.length;
const ROW_HEIGHT = 22; // pixels, as in the style
const MAX_LISTED = 10;
const MAX_PIXELS = 64; // width of a small picture
const chosen = { layer: data.layer, head: data.head, token: null, side: "from" }; // clicked
const pointed = { token: null, side: "from" }; // hovered or focused
let weights, rollout;

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

function element(tag, content = "", name = "") {
  const node = document.createElement(tag);
  node.append(content);
  if (name) node.className = name;
  if (tag === "button") node.type = "button";
  return node;
}

// --- Weights, stored as bytes of their square roots ---

const byteOf = (layer, head, from, to) => weights[((layer * data.heads + head) * count + from) * count + to];
const weightOf = (byte) => (byte / 255) ** 2;
const minWeight = () => (Number(byId("least").value) / 100) ** 2;
const active = () => (pointed.token === null ? chosen : pointed);

function weight(from, to) {
  const { layer, head } = chosen, source = byId("source").value;
  if (source === "rollout") return weightOf(rollout[(layer * count + from) * count + to]);
  if (source === "head") return weightOf(byteOf(layer, head, from, to));
  let sum = 0;
  for (let other = 0; other < data.heads; other++) sum += weightOf(byteOf(layer, other, from, to));
  return sum / data.heads;
}

// Return whether the filters show a pair of tokens, regardless of its weight.
function isShown(from, to) {
  const { token, side } = active(), segments = [data.tokens[from].segment, data.tokens[to].segment];
  if (token !== null && token !== (side === "from" ? from : to)) return false;
  if (!byId("special").checked && segments.includes(null)) return false;
  return ["", segments.join("")].includes(byId("texts").value);
}

// --- The grid of all heads ---

const headButtons = () => [...byId("grid").querySelectorAll("button")];

function drawSmall(canvas, layer, head, color) {
  const size = Math.min(count, MAX_PIXELS), image = new ImageData(size, size);
  canvas.width = canvas.height = size;
  for (let pixel = 0; pixel < size * size; pixel++) image.data.set(color, 4 * pixel);
  // A pixel that represents several pairs of tokens shows their largest weight, so that thin lines remain visible.
  for (let from = 0; from < count; from++)
    for (let to = 0; to < count; to++) {
      const at = 4 * (Math.floor((from * size) / count) * size + Math.floor((to * size) / count)) + 3;
      image.data[at] = Math.max(image.data[at], byteOf(layer, head, from, to));
    }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function makeGrid() {
  const grid = byId("grid");
  grid.append(element("span"));
  for (let head = 0; head < data.heads; head++) grid.append(element("span", head));
  for (let layer = 0; layer < data.layers; layer++) {
    grid.append(element("span", layer));
    for (let head = 0; head < data.heads; head++) {
      const button = element("button", element("canvas"));
      button.title = `layer ${layer}, head ${head}`;
      button.setAttribute("aria-label", button.title);
      Object.assign(button.dataset, { layer, head });
      button.addEventListener("click", () => choose(layer, head));
      grid.append(button);
    }
  }
  grid.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const clip = (value, end) => Math.min(Math.max(value, 0), end - 1);
    choose(clip(chosen.layer + move[0], data.layers), clip(chosen.head + move[1], data.heads));
    headButtons()[chosen.layer * data.heads + chosen.head].focus();
  });
}

function drawGrid() {
  const color = accent();
  for (const button of headButtons()) drawSmall(button.firstChild, Number(button.dataset.layer), Number(button.dataset.head), color);
}

function choose(layer, head) {
  Object.assign(chosen, { layer, head });
  headButtons().forEach((button, index) => {
    const isChosen = index === layer * data.heads + head;
    button.setAttribute("aria-pressed", isChosen);
    button.tabIndex = isChosen ? 0 : -1;
  });
  draw();
}

// --- One head: two columns of tokens with lines between them ---

function makeColumn(side) {
  const point = (token) => { Object.assign(pointed, { token, side }); draw(); };
  const buttons = data.tokens.map((token, index) => {
    const button = element("button", token.text, "token");
    button.title = `${token.text} (token ${index})`;
    button.classList.toggle("special", token.segment === null);
    button.classList.toggle("second", token.segment === 1);
    button.tabIndex = index ? -1 : 0;
    for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => point(index));
    for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => point(null));
    button.addEventListener("click", () => {
      const isSame = chosen.token === index && chosen.side === side;
      Object.assign(chosen, { token: isSame ? null : index, side });
      draw();
    });
    return button;
  });
  byId(side).append(...buttons.map((button) => element("li", button)));
  byId(side).addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (step) event.preventDefault();
    if (!next) return;
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
  });
}

function draw() {
  const { token, side } = active(), threshold = minWeight().toFixed(3), lines = [];
  let total = 0;
  for (let from = 0; from < count; from++)
    for (let to = 0; to < count; to++) {
      if (!isShown(from, to)) continue;
      total++;
      const value = weight(from, to);
      if (value > 0 && value >= minWeight()) lines.push({ from, to, value });
    }
  const source = { head: `head ${chosen.head}`, mean: "mean of its heads", rollout: "rollout up to it" }[byId("source").value];
  byId("head-title").textContent = `Layer ${chosen.layer}, ${source}`;
  byId("least-shown").textContent = threshold;
  byId("count").textContent = `${lines.length} of ${total} weights are at least ${threshold}`;
  drawLines(lines);
  const other = side === "from" ? "to" : "from";
  const shares = new Map(token === null ? [] : lines.map((line) => [line[other], line.value]));
  for (const column of ["from", "to"])
    byId(column).querySelectorAll("button").forEach((button, index) => {
      button.style.setProperty("--share", column === other ? Math.round(70 * Math.sqrt(shares.get(index) ?? 0)) : 0);
      button.classList.toggle("active", index === token && column === side);
      button.setAttribute("aria-pressed", index === chosen.token && column === chosen.side);
    });
  list(token, side, lines);
}

function drawLines(lines) {
  const canvas = byId("lines"), scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = count * ROW_HEIGHT;
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = canvas.getContext("2d"), color = accent();
  context.scale(scale, scale);
  for (const { from, to, value } of lines) {
    const [start, end] = [(from + 0.5) * ROW_HEIGHT, (to + 0.5) * ROW_HEIGHT];
    context.beginPath();
    context.strokeStyle = `rgba(${color}, ${Math.min(1, 0.08 + value)})`;
    context.lineWidth = 0.6 + 2.4 * value;
    context.moveTo(0, start);
    context.bezierCurveTo(width / 2, start, width / 2, end, width, end);
    context.stroke();
  }
}

function list(token, side, lines) {
  const verb = side === "from" ? "attends to" : "is attended to by", other = side === "from" ? "to" : "from";
  const nothing = lines.length ? "" : " nothing with these filters";
  byId("summary").textContent = token === null ? "Point at a token, or choose one" : `${data.tokens[token].text} ${verb}${nothing}`;
  const listed = token === null ? [] : lines.sort((a, b) => b.value - a.value).slice(0, MAX_LISTED);
  byId("top").replaceChildren(...listed.map((line) => {
    const bar = element("i"), item = element("li", element("span", data.tokens[line[other]].text));
    bar.style.setProperty("--share", (100 * line.value).toFixed(1));
    item.append(element("span", bar, "meter"), element("span", line.value.toFixed(3)));
    return item;
  }));
}

async function start() {
  byId("failed").hidden = "DecompressionStream" in window;
  [weights, rollout] = await Promise.all([unpack(data.weights), unpack(data.rollout)]);
  makeGrid();
  makeColumn("from");
  makeColumn("to");
  drawGrid();
  for (const id of ["source", "least", "texts", "special"]) byId(id).addEventListener("input", draw);
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawGrid(); draw(); });
  choose(data.layer, data.head);
  document.documentElement.dataset.ready = "true";
}

start();
