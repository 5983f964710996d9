"use strict";
// What is switched on, and the numbers under the pointer. The charts stand in the page already.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DASHES = ["", "7 4", "2 4", "9 4 2 4"];
const state = {setting: 0, on: new Set(), shown: (group) => state.on.has(group.id)};
const groups = () => DATA.settings[state.setting].groups;
const $ = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function swatch(group) {
  const made = element("span", {class: "swatch", "aria-hidden": "true"});
  made.innerHTML = `<svg width="22" height="8" viewBox="0 0 22 8"><line x1="1" x2="21" y1="4" y2="4" stroke-width="3"/></svg>`;
  made.querySelector("line").style.stroke = group.color;
  made.querySelector("line").style.strokeDasharray = DASHES[group.dash % DASHES.length];
  return made;
}

// ---- what is switched on ---------------------------------------------------------------------------------------
function switched() {
  all("[data-group]").forEach((part) => part.classList.toggle("off", !state.on.has(part.dataset.group)));
}

function fillChips() {
  const chips = $("chips"), change = (wanted) => () => {
    groups().forEach((g) => (wanted(g) ? state.on.add(g.id) : state.on.delete(g.id)));
    fillChips(); switched();
  };
  chips.replaceChildren(...groups().map((group) => {
    const chip = element("button", {class: "chip", type: "button", "aria-pressed": state.on.has(group.id), title: "click: on or off; double click: this one alone"}, swatch(group), group.label);
    chip.addEventListener("click", () => {
      state.on.has(group.id) ? state.on.delete(group.id) : state.on.add(group.id);
      chip.setAttribute("aria-pressed", state.on.has(group.id));
      switched();
    });
    chip.addEventListener("dblclick", change((g) => g === group));
    return chip;
  }));
  if (groups().length <= 2) return;
  const best = groups().filter((g) => g.on), some = best.length < groups().length ? [[`best ${best.length} of ${groups().length}`, (g) => g.on]] : [];
  const buttons = [...some, ["all", () => true], ["none", () => false]].map(([text, wanted]) => {
    const button = element("button", {class: "plain", type: "button"}, text);
    button.addEventListener("click", change(wanted));
    return button;
  });
  some.length ? chips.prepend(...buttons) : chips.append(...buttons);
}

function show(index) {
  state.setting = index;
  all("[data-setting]").forEach((part) => { part.hidden = +part.dataset.setting !== index; });
  all("section").forEach((part) => { part.hidden = !all("[data-setting]:not([hidden]), .static:not([hidden])", part).length; });
  fillChips();
  switched();
}

function sortable(table) {
  all("thead button", table).forEach((button, column) => button.addEventListener("click", () => {
    const up = button.dataset.order === "down", value = (tr) => +(tr.cells[column].dataset.value ?? NaN), body = table.tBodies[0];
    all("thead button", table).forEach((other) => delete other.dataset.order);
    button.dataset.order = up ? "up" : "down";
    const key = (tr) => (isNaN(value(tr)) ? (up ? Infinity : -Infinity) : value(tr));
    const order = (a, b) => (column ? key(a) - key(b) : a.cells[0].textContent.localeCompare(b.cells[0].textContent));
    body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
  }));
}

// ---- the numbers under the pointer -----------------------------------------------------------------------------
function written(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2).replace("e+", "e") : String(+value.toPrecision(4));
}

// a plot says where it stands and from where to where it counts; the height of a line at a place is a number
function plotsOf(svg) {
  return all("[data-plot]", svg).map((element) => {
    const [left, right, bottom, top, x0, x1, y0, y1] = element.dataset.plot.split(" ").map(Number), log = element.dataset.yScale === "log";
    const plot = {left, right, bottom, top, element, x: [x0, x1, false], y: [y0, y1, log], words: {...element.dataset}};
    plot.paths = all("[data-group] path", element).map((path) => {
      const group = path.closest("[data-group]"), use = group.querySelector(`use[href="#${path.id}"]`);
      return {path, group: group.dataset.group, band: group.classList.contains("band"), down: use ? +use.getAttribute("y") : 0, drawn: path.getAttribute("d")};
    });
    plot.axes = axesOf(plot);
    plot.label = all("text", element).find((text) => text.textContent === plot.words.x);
    plot.now = {x: plot.x, y: plot.y};
    return plot;
  });
}

// what was drawn of x and of y: ticks, and a power of ten behind the name of the axis
function axesOf(plot) {
  const found = {};
  for (const use of all("use", plot.element).filter((one) => !one.closest("[data-group]"))) {
    const tick = use.parentNode.parentNode.parentNode, group = tick.parentNode;
    if (tick === plot.element || !tick.querySelector("text") || Object.values(found).some((axis) => axis.group === group)) continue;
    const isTick = (part) => part.querySelector("use"), parts = [...group.children], [, ...powers] = parts.filter((part) => !isTick(part));
    const drawn = [...parts.filter(isTick), ...powers], first = {tick, x: +use.getAttribute("x"), y: +use.getAttribute("y")};
    const upright = all("use", group).every((one) => Math.abs(one.getAttribute("x") - plot.left) < 0.1);
    found[upright ? "y" : "x"] = {group, drawn, first};
  }
  return found;
}

const valueAt = ([low, high, log], share) => (log ? low * (high / low) ** share : low + share * (high - low));
const shareOf = ([low, high, log], value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
const across = (plot, at) => (at - plot.left) / (plot.right - plot.left), upwards = (plot, at) => (at - plot.bottom) / (plot.top - plot.bottom);

// ---- other scales: lines are moved, and ticks stand at round numbers -------------------------------------------
const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const unitOf = (size) => UNITS.find(([one]) => size >= 0.9995 * one) ?? UNITS.at(-1);
const below = (value) => 10 ** Math.floor(Math.log10(value) + 1e-9);

// the round numbers of a scale, each with the size of its last digit
function roundNumbers([low, high, log]) {
  const decades = log ? Math.log10(high / low) : 0, found = [];
  if (decades < 0.8) {
    const rough = (high - low) / 6, step = [1, 2, 5, 10].map((times) => times * below(rough)).find((one) => one >= 0.999 * rough);
    for (let n = Math.ceil(low / step); n * step <= high; n++) found.push([n * step, below(step)]);
    return found;
  }
  const every = Math.ceil(decades / 7);
  for (let n = Math.floor(Math.log10(low)); n <= Math.log10(high); n++) {
    for (const times of decades < 2.5 ? [1, 2, 5] : n % every ? [] : [1]) found.push([times * 10 ** n, 10 ** n]);
  }
  return found.filter(([value]) => value >= low && value <= high);
}

function writtenTick([value, digit]) {
  const size = Math.abs(value), places = (one) => Math.max(0, Math.round(Math.log10(one)));
  if (size < digit / 2) return "0";
  if (size < 1e-3 || size >= 1e6) return value.toExponential(places(below(size) / digit)).replace("e+", "e");
  return value.toFixed(places(1 / digit));
}

// copies of the first tick at the round numbers of another scale; without one, the ticks that were drawn
function placeTicks(plot, name, scale) {
  const axis = plot.axes[name];
  if (!axis) return;
  all(".tick", axis.group).forEach((tick) => tick.remove());
  axis.drawn.forEach((part) => { part.style.display = scale ? "none" : ""; });
  for (const number of scale ? roundNumbers(scale) : []) {
    const share = shareOf(scale, number[0]), tick = axis.first.tick.cloneNode(true);
    const [right, down] = name === "x" ? [plot.left + share * (plot.right - plot.left) - axis.first.x, 0] : [0, plot.bottom + share * (plot.top - plot.bottom) - axis.first.y];
    all("defs", tick).forEach((part) => part.remove());
    tick.setAttribute("transform", `translate(${right.toFixed(2)} ${down.toFixed(2)})`);
    tick.style.display = "";
    tick.querySelector("text").textContent = writtenTick(number);
    tick.classList.add("tick");
    axis.group.append(tick);
  }
}

const AXES = {rounds: "round", seconds: "seconds", bytes: "sent both ways"};

function spentBy(id, part, round) {
  const group = DATA.settings.flatMap((setting) => setting.groups).find((one) => one.id === id), known = group.rounds, spent = group[part];
  const i = Math.max(0, known.findIndex((number) => number >= round)), share = i ? (round - known[i - 1]) / (known[i] - known[i - 1]) : 1;
  return (i ? spent[i - 1] + share * (spent[i] - spent[i - 1]) : spent[0]);
}

function rescale(plot, part, log) {
  const points = (one) => [...one.drawn.matchAll(/(-?[\d.]+) (-?[\d.]+)/g)].map(([, x, y]) => [+x, +y]);
  const other = part !== "rounds" && plot.words.x === "round", lines = plot.paths.filter((one) => !one.band);
  const spent = (one, at) => { const value = valueAt(plot.x, across(plot, at)); return other ? spentBy(one.group, part, Math.round(value)) : value; };
  const y = (one, at) => valueAt(plot.y, upwards(plot, at + one.down));
  const heights = lines.flatMap((one) => points(one).map(([, at]) => y(one, at))), low = Math.min(...heights), high = Math.max(...heights);
  const whole = other ? Math.max(...lines.flatMap((one) => points(one).map(([at]) => spent(one, at)))) : 0;
  const [unit, called] = other && part === "bytes" ? unitOf(whole) : [1, ""], most = whole / unit, x = (one, at) => spent(one, at) / unit;
  plot.now = {x: other ? [-0.03 * most, 1.03 * most, false] : plot.x, y: log && !plot.y[2] && low > 0 && high > low ? [low ** 1.05 / high ** 0.05, high ** 1.05 / low ** 0.05, true] : plot.y};
  for (const one of plot.paths) {
    one.path.setAttribute("d", one.drawn.replace(/(-?[\d.]+) (-?[\d.]+)/g, (_, across, down) => {
      const wide = shareOf(plot.now.x, x(one, +across)), tall = shareOf(plot.now.y, Math.max(y(one, +down), plot.now.y[2] ? plot.now.y[0] : -Infinity));
      return `${(plot.left + wide * (plot.right - plot.left)).toFixed(2)} ${(plot.bottom + tall * (plot.top - plot.bottom) - one.down).toFixed(2)}`;
    }));
  }
  for (const name of ["x", "y"]) placeTicks(plot, name, plot.now[name] === plot[name] ? null : plot.now[name]);
  if (plot.label) plot.label.textContent = other ? AXES[part] + (called && ` (${called})`) : plot.words.x;
}

function follow(svg, plots) {
  const leave = () => { $("tip").style.display = "none"; };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), by = svg.viewBox.baseVal.width / box.width;
    const at = (event.clientX - box.left) * by, high = (event.clientY - box.top) * by;
    const plot = plots.find((p) => at >= p.left && at <= p.right && high >= p.top && high <= p.bottom);
    if (!plot) return leave();
    const lines = plot.paths.filter((one) => !one.band);
    const rows = groups().filter(state.shown).flatMap((group) => lines.filter((one) => one.group === group.id).map((one) => {
      const height = heightAt(one.path.getAttribute("d").match(/-?[\d.]+/g).map(Number), at);
      return height === null ? null : [height, group, written(valueAt(plot.now.y, upwards(plot, height)))];
    })).filter(Boolean).sort((a, b) => a[0] - b[0]);
    const x = valueAt(plot.now.x, across(plot, at)), name = plot.label?.textContent ?? plot.words.x;
    const more = rows.length > 14 ? [element("div", {}, `… and ${rows.length - 14} more`)] : [];
    const head = element("b", {}, `${name} ${/round|band|layer|client|rank/.test(name) ? Math.round(x) : written(x)}, ${plot.words.y}`);
    showTip(event, head, ...rows.slice(0, 14).map(([, group, text]) => element("div", {}, element("span", {}, swatch(group), group.label), element("span", {}, text))), ...more);
  });
}

function heightAt(points, at) {
  for (let i = 0; i + 3 < points.length; i += 2) {
    const [x, y, next, then] = points.slice(i, i + 4);
    if (at >= x && at <= next) return y + (next > x ? (at - x) / (next - x) : 0) * (then - y);
  }
  return null;
}

function showTip(event, ...children) {
  const tip = $("tip");
  tip.replaceChildren(...children);
  tip.style.display = "block";
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 8))}px`;
}

DATA.settings.forEach((one) => one.groups.forEach((group) => {
  if (group.on) state.on.add(group.id);
  all(`tr[data-group="${group.id}"]`).forEach((tr) => tr.cells[0].prepend(swatch(group)));
}));
all("table").forEach(sortable);
const drawn = all(".chart svg").map((svg) => [svg, plotsOf(svg)]);
drawn.forEach(([svg, plots]) => follow(svg, plots));
const scaled = () => drawn.forEach(([, plots]) => plots.forEach((plot) => rescale(plot, $("axis").value, $("log").checked)));
["axis", "log"].forEach((id) => $(id).addEventListener("change", scaled));
$("setting")?.addEventListener("change", (event) => show(+event.target.value));
$("bands")?.addEventListener("change", (event) => document.body.classList.toggle("bandless", !event.target.checked));
const paper = (on) => () => all("#reproduce .grid > details").forEach((part) => { part.open = on; });
addEventListener("beforeprint", paper(true));
addEventListener("afterprint", paper(false));
show(0);
document.documentElement.dataset.ready = "yes";
