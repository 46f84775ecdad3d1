// Draws one chart of run_page.html; run_page.js is after it in the page.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170, LEFT = 46, RIGHT = 14, TOP = 8, BOTTOM = 20;

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// A whole step, with all its digits.
const whole = x => String(Math.round(x));
// A number in few characters.
function short(x) {
  if (x === 0 || !Number.isFinite(x)) return String(x);
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(+x.toPrecision(4));
}

// Moving averages over `window` values, over fewer near the ends.
function averages(values, window) {
  const reach = Math.floor(window / 2);
  return values.map((_, i) => {
    // each window is added up anew: differences of running sums lose all but a huge value
    const near = values.slice(Math.max(0, i - reach), i + reach + 1);
    return near.reduce((sum, value) => sum + value, 0) / near.length;
  });
}

// Round values that divide a range in about `count` parts.
function ticks(low, high, count) {
  const raw = (high - low) / count, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * unit).find(size => size >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(+(k * step).toPrecision(12));
  return found;
}

function range(values, pad) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  if (low === high) { const room = Math.abs(low) * 0.1 || 1; return [low - room, high + room]; }
  const room = (high - low) * pad;
  return [low - room, high + room];
}

// The place of the value that is nearest to x in ascending values.
function nearest(values, x) {
  let low = 0, high = values.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] < x) low = middle + 1; else high = middle; }
  return low > 0 && x - values[low - 1] < values[low] - x ? low - 1 : low;
}

// The number of values of a line that are averaged: of all lines those in an equal part of the axis, whose width is `span`.
function windowOf(x, span, smooth) {
  const own = x[x.length - 1] - x[0];
  return own > 0 ? Math.max(1, Math.round(smooth * x.length * span / own / 4)) : 1;
}
const above = line => ({ ...line, x: line.x.filter((_, i) => line.y[i] > 0), y: line.y.filter(y => y > 0) });

// Draws lines { label, color, dash, x: [...], y: [...] } into a figure. `how` has smooth (0 to 1), log, share and unit of x.
// A logarithmic chart leaves out what is not above 0; a chart in which nothing is stays linear.
function draw(figure, lines, how) {
  const positive = how.log ? lines.map(above).filter(line => line.y.length) : [], log = positive.length > 0;
  if (log) lines = positive;
  const width = Math.max(200, figure.clientWidth - 16);
  const scaled = log ? Math.log10 : y => y, svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  const [x0, x1] = range(lines.flatMap(line => [line.x[0], line.x[line.x.length - 1]]), 0);
  let [y0, y1] = range(lines.flatMap(line => line.y.map(scaled)), 0.05);
  if (how.share && !log) [y0, y1] = [-0.02, 1.02];
  const px = x => LEFT + (x - x0) / (x1 - x0) * (width - LEFT - RIGHT), py = y => HEIGHT - BOTTOM - (scaled(y) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
  for (const tick of ticks(y0, y1, 4)) {
    const y = HEIGHT - BOTTOM - (tick - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    svg.append(shape("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, stroke: "#e6e9ee" }));
    svg.append(shape("text", { x: LEFT - 5, y: y + 3.5, "text-anchor": "end" }, short(log ? 10 ** tick : tick)));
  }
  for (const tick of ticks(x0, x1, Math.max(2, Math.floor(width / 90)))) {
    if (how.whole && tick !== Math.round(tick)) continue;
    svg.append(shape("text", { x: px(tick), y: HEIGHT - 5, "text-anchor": "middle" }, how.whole ? whole(tick) : short(tick)));
  }
  const smoothed = lines.map(line => averages(line.y, windowOf(line.x, x1 - x0, how.smooth)));
  lines.forEach((line, n) => {
    const path = values => values.map((y, i) => `${i ? "L" : "M"}${px(line.x[i]).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    const stroke = { fill: "none", stroke: line.color, "stroke-dasharray": line.dash || "none", "stroke-linejoin": "round" };
    if (smoothed[n].some((y, i) => y !== line.y[i])) svg.append(shape("path", { ...stroke, d: path(line.y), "stroke-width": 1, opacity: 0.28 }));
    svg.append(shape("path", { ...stroke, d: path(smoothed[n]), "stroke-width": 1.8 }));
    if (line.x.length < 30) line.x.forEach((x, i) => svg.append(shape("circle", { cx: px(x), cy: py(smoothed[n][i]), r: 2.4, fill: line.color })));
  });
  figure.append(svg);
  follow(figure, svg, lines, smoothed, how, { width, x0, x1, px, py });
}

// Shows the values under the pointer.
function follow(figure, svg, lines, smoothed, how, { width, x0, x1, px, py }) {
  const tip = make("div", "", { class: "tip" }), cursor = shape("line", { y1: TOP, y2: HEIGHT - BOTTOM, stroke: "#9aa2af" });
  const dots = lines.map(line => shape("circle", { r: 3.5, fill: line.color }));
  const place = x => how.whole ? whole(x) : short(x);
  const hide = () => { tip.remove(); cursor.remove(); dots.forEach(dot => dot.remove()); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) * width / box.width;
    const x = x0 + (at - LEFT) / (width - LEFT - RIGHT) * (x1 - x0);
    const places = lines.map(line => nearest(line.x, x)), own = lines[0].x[places[0]];
    tip.replaceChildren(make("div", `${how.unit} ${place(own)}`));
    lines.forEach((line, n) => {
      const i = places[n], row = make("div", "");
      const color = make("i", ""); color.style.background = line.color;
      const value = smoothed[n][i] === line.y[i] ? short(line.y[i]) : `${short(smoothed[n][i])} (${short(line.y[i])})`;
      const elsewhere = line.x[i] === own ? "" : ` at ${place(line.x[i])}`;
      row.append(color, `${line.label ? line.label + ": " : ""}${value}${elsewhere}`);
      tip.append(row);
      dots[n].setAttribute("cx", px(line.x[i])); dots[n].setAttribute("cy", py(smoothed[n][i]));
      svg.append(dots[n]);
    });
    cursor.setAttribute("x1", px(own)); cursor.setAttribute("x2", px(own));
    svg.append(cursor);
    figure.append(tip);
    const left = px(own) * box.width / width;
    tip.style.left = left > box.width / 2 ? "auto" : `${left + 14}px`;
    tip.style.right = left > box.width / 2 ? `${box.width - left + 14}px` : "auto";
  });
}
