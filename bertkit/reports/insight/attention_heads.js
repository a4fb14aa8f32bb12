// The picture of the distances between all heads, which tells a pair that is pointed at.
const canvas = $("distances");
const at = { row: 0, column: 1 };
let distances;

function draw() {
  const color = accent();
  canvas.width = canvas.height = data.count;
  const image = new ImageData(data.count, data.count);
  distances.forEach((byte, number) => image.data.set([...color, byte], 4 * number));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const nameOf = (number) => `${Math.floor(number / data.heads)}.${number % data.heads}`;

function say(row, column) {
  const last = data.count - 1;
  at.row = Math.min(Math.max(row, 0), last);
  at.column = Math.min(Math.max(column, 0), last);
  const distance = (data.most * distances[at.row * data.count + at.column]) / 255;
  $("pair").textContent = `heads ${nameOf(at.row)} and ${nameOf(at.column)}: ${distance.toFixed(3)} bits`;
}

async function start() {
  if (!("DecompressionStream" in window)) {
    $("pair").textContent = "This browser is too old to unpack the distances: it has no DecompressionStream.";
    return;
  }
  distances = await unpack(data.distances);
  draw();
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (offset, size) => Math.floor((offset / size) * data.count);
    say(place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width));
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    say(at.row + move[0], at.column + move[1]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.documentElement.dataset.ready = "true";
}

start();
