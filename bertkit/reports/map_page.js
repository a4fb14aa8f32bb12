// What follows map_plane.js: texts, the list of what is chosen, pictures, and the start.

// --- Texts ---

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const idOf = (i) => (ids ? ids[i] : i);

function described(i) {
  const body = element("bdi"), text = texts[i] ?? "", [start, end] = marks ? marks.slice(2 * i, 2 * i + 2) : [0, 0];
  body.dir = "auto";
  if (end > start) body.append(text.slice(0, start), element("mark", text.slice(start, end)), text.slice(end));
  else body.append(text);
  return [body, element("small", [labels.length > 1 ? labels[labelOf[i]].name : "", "row " + idOf(i)].filter(Boolean).join(" \u00b7 "))];
}

function setHovered(i) {
  if (i === hovered) return;
  hovered = i;
  const box = byId("hover");
  box.hidden = i < 0;
  if (i >= 0) {
    box.replaceChildren(...described(i));
    const [x, y] = toScreen(i), [wide, high] = [box.offsetWidth, box.offsetHeight];
    box.style.left = Math.max(4, Math.min(width - wide - 4, x + 14)) + "px";
    box.style.top = (y + high + 18 < height ? y + 14 : Math.max(4, y - high - 14)) + "px";
  }
  drawOver();
}

function refresh() {
  lit = selected || matching ? Uint8Array.from(xs, (_, i) => +((!selected || selected[i]) && (!matching || matching[i]))) : null;
  draw();
  const list = [];
  for (let i = 0; lit && i < count; i++) if (lit[i] && !hidden[labelOf[i]]) list.push(i);
  byId("found").textContent = lit ? `${list.length.toLocaleString("en")} chosen` : "";
  byId("chosen").hidden = !lit;
  byId("chosen-title").textContent = `${list.length.toLocaleString("en")} of ${count.toLocaleString("en")} points`;
  const totals = labels.map(() => 0);
  for (const i of list) totals[labelOf[i]]++;
  byId("counts").replaceChildren(...labels.flatMap(({ name, color }, number) => {
    if (!totals[number]) return [];
    const item = element("li"), swatch = element("i");
    swatch.style.background = color;
    item.append(swatch, ` ${name}: ${totals[number].toLocaleString("en")} (${Math.round((100 * totals[number]) / list.length)}%)`);
    return [item];
  }));
  byId("texts-list").replaceChildren(...list.slice(0, MOST_LISTED).map((i) => {
    const item = element("li"), button = element("button");
    button.type = "button";
    button.append(...described(i));
    button.addEventListener("focus", () => setHovered(i));
    button.addEventListener("click", () => { [view.x, view.y] = [xs[i], ys[i]]; moved = true; draw(); hovered = -1; setHovered(i); });
    item.append(button);
    return item;
  }));
  byId("more").textContent = list.length > MOST_LISTED ? `The first ${MOST_LISTED} are listed.` : "";
}

function choose(test) {
  selected = Uint8Array.from(xs, (_, i) => +(!hidden[labelOf[i]] && test(i)));
  refresh();
}

function isInside(x, y, corners) {
  let inside = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [xi, yi] = corners[i], [xj, yj] = corners[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

function search(wanted) {
  lowered ??= texts.map((text) => text.toLowerCase());
  const sought = wanted.trim().toLowerCase();
  matching = sought ? Uint8Array.from(lowered, (text) => +text.includes(sought)) : null;
  refresh();
}

function clear() {
  byId("search").value = "";
  selected = matching = outline = null;
  setLasso(false);
  refresh();
}

function setLasso(on) {
  lassoing = on;
  byId("lasso").setAttribute("aria-pressed", String(on));
}

// --- Pictures ---

function download(blob, ending) {
  const link = element("a");
  link.href = URL.createObjectURL(blob);
  link.download = `map.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const legend = () => labels.filter((_, number) => !hidden[number]).slice(0, 12);
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function paint() {
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), named = legend();
  [canvas.width, canvas.height] = [dots.width, dots.height + (28 + 20 * named.length) * ratio];
  pen.fillStyle = styleOf("--card");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(dots, 0, 0);
  pen.scale(ratio, ratio);
  pen.font = "13px system-ui, sans-serif";
  [byId("about").textContent, ...named.map(({ name }) => name)].forEach((text, line) => {
    const y = height + 18 + 20 * line;
    pen.fillStyle = styleOf("--ink");
    pen.fillText(text, line ? 26 : 8, y);
    if (!line) return;
    pen.fillStyle = named[line - 1].color;
    pen.fillRect(10, y - 9, 9, 9);
  });
  return canvas;
}

function drawing() {
  const plain = (text) => text.replace(/[\u0000-\u001f\u007f\ud800-\udfff\ufffe\uffff]/gu, " ").replace(/[&<>"]/g, (mark) => `&#${mark.charCodeAt(0)};`);
  const named = legend(), tall = height + 28 + 20 * named.length, size = radius().toFixed(1);
  const paths = labels.map(() => []);
  for (let i = 0; i < count; i++) {
    const [x, y] = toScreen(i);
    if (!hidden[labelOf[i]] && (!lit || lit[i]) && x > 0 && y > 0 && x < width && y < height) paths[labelOf[i]].push(`<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${size}"/>`);
  }
  const lines = [byId("about").textContent, ...named.map(({ name }) => name)].map((text, line) => {
    const y = height + 18 + 20 * line, swatch = line ? `<rect x="10" y="${y - 9}" width="9" height="9" fill="${named[line - 1].color}"/>` : "";
    return `${swatch}<text x="${line ? 26 : 8}" y="${y}" fill="${styleOf("--ink")}">${plain(text)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${tall}" width="${width}" height="${tall}" font-family="system-ui, sans-serif" font-size="13">` +
    `<rect width="100%" height="100%" fill="${styleOf("--card")}"/>` + paths.map((points, number) => `<g fill="${labels[number].color}" fill-opacity=".75">${points.join("")}</g>`).join("") + lines.join("") + "</svg>";
}

// --- The start ---

function listLabels() {
  const buttons = labels.map(({ name, color, count: total }, number) => {
    const button = element("button"), swatch = element("i");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    swatch.style.background = color;
    button.append(swatch, element("bdi", name), element("span", total.toLocaleString("en")));
    button.addEventListener("click", () => show((other) => (other === number ? hidden[number] : !hidden[other])));
    return button;
  });
  const show = (test) => {
    buttons.forEach((button, number) => { hidden[number] = !test(number); button.setAttribute("aria-pressed", String(!hidden[number])); });
    setHovered(-1);
    refresh();
  };
  const both = element("div", undefined, "all");
  for (const [name, shown] of [["All", true], ["None", false]]) {
    const button = element("button", name);
    button.type = "button";
    button.addEventListener("click", () => show(() => shown));
    both.append(button);
  }
  byId("legend").hidden = labels.length < 2;
  byId("legend").replaceChildren(both, ...buttons);
}

function resize() {
  if (!plane.clientWidth) return; // not laid out yet, as in a hidden frame
  [width, height, ratio] = [plane.clientWidth, plane.clientHeight, devicePixelRatio || 1];
  for (const canvas of [dots, over]) [canvas.width, canvas.height] = [width * ratio, height * ratio];
  if (moved) draw();
  else fit();
}

async function start() {
  const stream = new Blob([unpack("texts")]).stream().pipeThrough(new DecompressionStream("deflate"));
  ({ texts, marks, ids } = JSON.parse(await new Response(stream).text()));
  marks = marks && Int32Array.from(marks.flat());
}

byId("in").addEventListener("click", () => zoom(1.4));
byId("out").addEventListener("click", () => zoom(1 / 1.4));
byId("fit").addEventListener("click", fit);
byId("lasso").addEventListener("click", () => setLasso(!lassoing));
byId("inside").addEventListener("click", () => { choose((i) => { const [x, y] = toScreen(i); return x > 0 && y > 0 && x < width && y < height; }); byId("chosen-title").focus(); });
byId("clear").addEventListener("click", clear);
byId("search").addEventListener("input", (event) => search(event.target.value));
byId("layer").addEventListener("input", (event) => moveTo(Number(event.target.value)));
byId("png").addEventListener("click", () => paint().toBlob((blob) => download(blob, "png")));
byId("svg").addEventListener("click", () => download(new Blob([drawing()], { type: "image/svg+xml" }), "svg"));
for (const part of facts.layers.length > 1 ? [] : ["layer", "layer-label"]) byId(part).hidden = true;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOver);
listLabels();
moveTo(layer, false);
new ResizeObserver(resize).observe(plane);
resize();
const ready = start();
