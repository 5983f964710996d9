"use strict";
// Drawing: axes, lines with bands, heat maps, surfaces. Nothing here knows what is drawn.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 4", "9 4 2 4"];
const RAMP = ["#00204c", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c164", "#ffe945"].map(hex);
const TWO_SIDED = ["#08306b", "#2b7bba", "#a6cee3", "#f7f7f7", "#fdc086", "#e08214", "#7f3b08"].map(hex);
const BLUES = ["#f4f8fc", "#c6dbef", "#7fb3d9", "#3787c0", "#0b5394", "#06294d"].map(hex);

function hex(text) { return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)); }

function colour(ramp, share) {
  const at = Math.min(Math.max(share, 0), 1) * (ramp.length - 1), i = Math.min(Math.floor(at), ramp.length - 2);
  return `rgb(${ramp[i].map((low, c) => Math.round(low + (at - i) * (ramp[i + 1][c] - low))).join(",")})`;
}

function node(name, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ---- numbers ---------------------------------------------------------------------------------------------------
function short(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return String(+value.toPrecision(4));
}

function written(value, unit) {
  if (unit === "share") return `${(100 * value).toFixed(1)} %`;
  if (unit === "bytes") {
    for (const [size, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${name}`;
    return `${value} B`;
  }
  return short(value);
}

function niceTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(+tick.toPrecision(10));
  return found;
}

function logTicks(low, high) {
  const found = [];
  const few = Math.log10(high / low) < 2.5 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(Math.log10(high / low) / 7));
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every)
    for (const n of few) if (n * 10 ** power >= low * 0.999 && n * 10 ** power <= high * 1.001) found.push(+(n * 10 ** power).toPrecision(6));
  return found.length > 1 ? found : [low, high].map((n) => +n.toPrecision(2));
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : (n) => n, a = f(low), b = f(high);
  return (n) => from + ((f(n) - a) / (b - a || 1)) * (to - from);
}

// ---- lines -----------------------------------------------------------------------------------------------------
// spec: {x: {label, unit}, y: {label, unit, log}, series: [{name, color, dash, x, y, deviation?, marks?}], steps?}
function lineChart(holder, spec) {
  const width = Math.max(280, Math.round(holder.clientWidth || 430)), height = Math.round(Math.min(300, Math.max(210, width * 0.58)));
  const svg = node("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${spec.y.label} against ${spec.x.label}`});
  holder.replaceChildren(svg);
  const drawn = spec.series.filter((s) => s.y.some((v) => v !== null));
  if (!drawn.length) {
    node("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, svg, "no method is switched on");
    return;
  }
  const log = spec.y.log;
  const good = (v) => v !== null && isFinite(v) && (!log || v > 0);
  const ys = drawn.flatMap((s) => s.y.flatMap((v, i) => {
    const d = s.deviation ? s.deviation[i] || 0 : 0;
    return good(v) ? [v, v + d, ...(!log || v - d > 0 ? [v - d] : [])] : [];
  }));
  const xs = drawn.flatMap((s) => s.x);
  let [low, high] = [Math.min(...ys), Math.max(...ys)], [left, right] = [Math.min(...xs), Math.max(...xs)];
  if (spec.y.unit === "share") [low, high] = [Math.max(0, low), Math.min(1, Math.max(high, low))];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  if (left === right) [left, right] = [left - 1, right + 1];
  if (!log) { const pad = (high - low) * 0.04; low = low >= 0 ? Math.max(0, low - pad) : low - pad; high += pad; }
  const yTicks = log ? logTicks(low, high) : niceTicks(low, high, height / 46);
  const labels = yTicks.map((t) => written(t, spec.y.unit).replace(".0 %", " %"));
  const margin = {left: 14 + 6.3 * Math.max(...labels.map((t) => t.length)), right: 12, top: 8, bottom: 36};
  const X = scale(left, right, margin.left, width - margin.right), Y = scale(low, high, height - margin.bottom, margin.top, log);

  yTicks.forEach((tick, i) => {
    node("line", {x1: margin.left, x2: width - margin.right, y1: Y(tick), y2: Y(tick), class: "rule"}, svg);
    node("text", {x: margin.left - 6, y: Y(tick) + 4, "text-anchor": "end"}, svg, labels[i]);
  });
  const whole = drawn.every((s) => s.x.every(Number.isInteger));
  const few = whole && right - left < width / 30 ? drawn[0].x : niceTicks(left, right, width / 85).filter((t) => !whole || Number.isInteger(t));
  for (const tick of few) node("text", {x: X(tick), y: height - margin.bottom + 16, "text-anchor": "middle"}, svg, written(tick, spec.x.unit));
  node("line", {x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom, class: "axis"}, svg);
  node("text", {x: (margin.left + width - margin.right) / 2, y: height - 4, "text-anchor": "middle"}, svg, spec.x.label);

  const clip = `clip-${lineChart.count = (lineChart.count || 0) + 1}`;
  node("rect", {x: margin.left, y: margin.top - 4, width: width - margin.left - margin.right, height: height - margin.top - margin.bottom + 8},
    node("clipPath", {id: clip}, node("defs", {}, svg)));
  const inside = node("g", {"clip-path": `url(#${clip})`}, svg);
  for (const s of drawn) {
    const points = s.x.map((x, i) => [x, s.y[i], s.deviation ? s.deviation[i] || 0 : 0]).filter((p) => good(p[1]));
    const floor = log ? low : -Infinity;
    if (spec.bands !== false && points.some((p) => p[2] > 0)) {
      const up = points.map(([x, y, d]) => `${X(x).toFixed(1)},${Y(y + d).toFixed(1)}`);
      const down = points.map(([x, y, d]) => `${X(x).toFixed(1)},${Y(Math.max(y - d, floor)).toFixed(1)}`).reverse();
      node("path", {d: `M${[...up, ...down].join("L")}Z`, class: "band", fill: s.color}, inside);
    }
    const path = points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join("L");
    node("path", {d: `M${path}`, class: "curve", stroke: s.color, "stroke-dasharray": DASHES[s.dash % DASHES.length], "data-series": s.name}, inside);
    if (s.marks || points.length === 1) for (const [x, y] of points) node("circle", {cx: X(x), cy: Y(y), r: 3, fill: s.color}, svg);
  }
  follow(svg, width, drawn, X, Y, good, spec, [margin.top, height - margin.bottom]);
}

// the value of every line under the pointer
function follow(svg, width, series, X, Y, good, spec, [top, bottom]) {
  const rule = node("line", {y1: top, y2: bottom, class: "axis", visibility: "hidden", "stroke-dasharray": "3 3"}, svg);
  const dots = series.map((s) => node("circle", {r: 3.5, fill: s.color, stroke: "#fff", visibility: "hidden"}, svg));
  const tip = document.getElementById("tip");
  const leave = () => { tip.style.display = "none"; [rule, ...dots].forEach((mark) => mark.setAttribute("visibility", "hidden")); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
    const near = series.map((s) => s.x.reduce((best, x, i) => (Math.abs(X(x) - at) < Math.abs(X(s.x[best]) - at) ? i : best), 0));
    const closest = series.reduce((best, s, k) => (Math.abs(X(s.x[near[k]]) - at) < Math.abs(X(series[best].x[near[best]]) - at) ? k : best), 0);
    const x = series[closest].x[near[closest]];
    rule.setAttribute("x1", X(x)); rule.setAttribute("x2", X(x)); rule.setAttribute("visibility", "visible");
    const rows = series.map((s, k) => {
      const i = near[k], y = s.y[i], shown = good(y) && Math.abs(X(s.x[i]) - X(x)) < 25;
      dots[k].setAttribute("visibility", shown ? "visible" : "hidden");
      if (!shown) return null;
      dots[k].setAttribute("cx", X(s.x[i])); dots[k].setAttribute("cy", Y(y));
      const spread = s.deviation && s.deviation[i] > 0 ? ` ± ${written(s.deviation[i], spec.y.unit).replace(" %", "")}` : "";
      return [y, row(s, written(y, spec.y.unit).replace(" %", "") + spread + (spec.y.unit === "share" ? " %" : ""))];
    }).filter(Boolean).sort((a, b) => b[0] - a[0]);
    const more = rows.length > 14 ? [element("div", {}, `… and ${rows.length - 14} more`)] : [];
    showTip(event, element("b", {}, spec.x.names ? spec.x.names[x - 1] : `${spec.x.label} ${written(x, spec.x.unit)}`), ...rows.slice(0, 14).map((r) => r[1]), ...more);
  });
}

function row(series, text) {
  const dot = element("i"); dot.style.background = series.color;
  return element("div", {}, element("span", {}, dot, series.name), element("span", {}, text));
}

function showTip(event, ...children) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...children);
  tip.style.display = "block";
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 8))}px`;
}

// ---- heat maps -------------------------------------------------------------------------------------------------
// spec: {rows: [[…]], low, high, ramp, x: {label, ticks}, y: {label, ticks}, say(i, j, value), zero?, square?, legend?}
function heatMap(holder, spec) {
  const width = Math.max(220, Math.round(holder.clientWidth || 430)), margin = {left: spec.y.room || 40, right: 8, top: 6, bottom: 32};
  const rows = spec.rows.length, columns = spec.rows[0].length, w = (width - margin.left - margin.right) / columns;
  const h = spec.square ? w : Math.min(spec.tall || 15, Math.max(5, 170 / rows)), height = margin.top + margin.bottom + h * rows;
  const svg = node("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title, "shape-rendering": "crispEdges"});
  const share = (v) => (spec.log ? Math.log(v / spec.low) / Math.log(spec.high / spec.low || 2) : (v - spec.low) / (spec.high - spec.low || 1));
  spec.rows.forEach((values, i) => values.forEach((value, j) => {
    if (value === null || (spec.zero && value === 0)) return;
    node("rect", {x: (margin.left + j * w).toFixed(2), y: (margin.top + i * h).toFixed(2), width: (w + 0.3).toFixed(2), height: (h + 0.3).toFixed(2), fill: colour(spec.ramp, share(value))}, svg);
  }));
  node("rect", {x: margin.left, y: margin.top, width: w * columns, height: h * rows, fill: "none", stroke: "#9aa3ad", "stroke-width": 0.7}, svg);
  for (const [at, text] of spec.x.ticks) node("text", {x: margin.left + (at + 0.5) * w, y: margin.top + h * rows + 14, "text-anchor": "middle"}, svg, text);
  for (const [at, text] of spec.y.ticks) node("text", {x: margin.left - 5, y: margin.top + (at + 0.5) * h + 4, "text-anchor": "end"}, svg, text);
  node("text", {x: margin.left + (w * columns) / 2, y: height - 4, "text-anchor": "middle"}, svg, spec.x.label);
  if (spec.y.label) node("text", {x: 0, y: 0, transform: `translate(10 ${margin.top + (h * rows) / 2}) rotate(-90)`, "text-anchor": "middle"}, svg, spec.y.label);
  svg.addEventListener("pointerleave", () => { document.getElementById("tip").style.display = "none"; });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), j = Math.floor((((event.clientX - box.left) / box.width) * width - margin.left) / w);
    const i = Math.floor((((event.clientY - box.top) / box.height) * height - margin.top) / h);
    if (i < 0 || j < 0 || i >= rows || j >= columns) document.getElementById("tip").style.display = "none";
    else showTip(event, element("span", {}, spec.say(i, j, spec.rows[i][j])));
  });
  holder.replaceChildren(svg);
}

// ---- points ----------------------------------------------------------------------------------------------------
// spec: {series: [{name, color, points: [[x, y]], names, classes?}], x: {label}, y: {label}}; classes are written instead of dots
function scatter(holder, spec) {
  const width = Math.max(260, Math.round(holder.clientWidth || 430)), height = Math.round(width * 0.68), pad = 22;
  const svg = node("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title});
  const every = spec.series.flatMap((s) => s.points), span = (k) => [Math.min(...every.map((p) => p[k])), Math.max(...every.map((p) => p[k]))];
  holder.replaceChildren(svg);
  if (!every.length) return;
  const X = scale(...span(0), pad + 8, width - pad), Y = scale(...span(1), height - pad - 10, pad);
  node("text", {x: width / 2, y: height - 4, "text-anchor": "middle"}, svg, spec.x.label);
  node("text", {transform: `translate(10 ${height / 2}) rotate(-90)`, "text-anchor": "middle"}, svg, spec.y.label);
  spec.series.forEach((s) => s.points.forEach(([x, y], i) => {
    const mark = s.classes
      ? node("text", {x: X(x).toFixed(1), y: (Y(y) + 4).toFixed(1), "text-anchor": "middle", style: `fill:${s.color}`, class: "point"}, svg, s.classes[i])
      : node("circle", {cx: X(x).toFixed(1), cy: Y(y).toFixed(1), r: 4.5, fill: s.color, "fill-opacity": 0.75, stroke: "#fff"}, svg);
    mark.addEventListener("pointermove", (event) => showTip(event, element("span", {}, `${s.name}: ${s.names[i]}`)));
    mark.addEventListener("pointerleave", () => { document.getElementById("tip").style.display = "none"; });
  }));
}

// ---- surfaces --------------------------------------------------------------------------------------------------
// a loss over a plane, turned by dragging; `turn` is shared, so that all surfaces are seen from the same side
function surface(holder, spec, turn, again) {
  const width = Math.max(240, Math.round(holder.clientWidth || 430)), height = Math.round(width * 0.72), ratio = Math.min(window.devicePixelRatio || 1, 2);
  const canvas = element("canvas", {width: width * ratio, height: height * ratio, role: "img", "aria-label": spec.title, tabindex: "0"});
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const draw = () => drawSurface(pen, width, height, spec, turn);
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    turn.angle += event.movementX / 90; turn.tilt = Math.min(1.3, Math.max(0.15, turn.tilt + event.movementY / 200));
    again();
  });
  canvas.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: -0.15, ArrowRight: 0.15}[event.key];
    if (by) { turn.angle += by; again(); event.preventDefault(); }
  });
  holder.replaceChildren(canvas);
  draw();
  return draw;
}

// one sheet is coloured by its height; several have a colour each, lighter where they are high
function drawSurface(pen, width, height, spec, turn) {
  const [sin, cos, tilt] = [Math.sin(turn.angle), Math.cos(turn.angle), turn.tilt], size = width * 0.3, alone = spec.sheets.length === 1 && !spec.sheets[0].color;
  const share = (v) => (Math.min(v ?? spec.high, spec.high) - spec.low) / (spec.high - spec.low || 1), faces = [];
  for (const {rows, color} of spec.sheets) {
    const n = rows.length, m = rows[0].length, base = alone ? null : hex(color);
    const place = (i, j) => {
      const [x, y, z] = [(2 * j) / (m - 1) - 1, (2 * i) / (n - 1) - 1, share(rows[i][j])];
      const across = x * cos - y * sin, deep = x * sin + y * cos;
      return [width / 2 + across * size, height * 0.66 + deep * size * Math.sin(tilt) - z * height * 0.4 * Math.cos(tilt), deep, z];
    };
    for (let i = 0; i < n - 1; i++) for (let j = 0; j < m - 1; j++) {
      const corners = [[i, j], [i, j + 1], [i + 1, j + 1], [i + 1, j]].map(([a, b]) => place(a, b)), mean = corners.reduce((a, c) => a + c[3], 0) / 4;
      const fill = alone ? colour(RAMP, mean) : `rgba(${base.map((c) => Math.round(c + (255 - c) * 0.45 * mean)).join(",")},.78)`;
      faces.push([corners.reduce((a, c) => a + c[2], 0), mean, corners, fill]);
    }
  }
  faces.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  pen.clearRect(0, 0, width, height);
  pen.lineWidth = 0.5;
  pen.strokeStyle = "rgba(255,255,255,.35)";
  for (const [, , corners, fill] of faces) {
    pen.beginPath();
    corners.forEach(([x, y], k) => (k ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.fillStyle = fill;
    pen.fill(); pen.stroke();
  }
}
