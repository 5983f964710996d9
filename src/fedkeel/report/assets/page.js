"use strict";
// The page: which charts there are, what is switched on, and redrawing them when that changes.

const DATA = JSON.parse(document.getElementById("data").textContent);
const state = {setting: 0, x: "rounds", bands: true, on: new Set(), log: new Set(), kind: {}, turn: {angle: 0.7, tilt: 0.55}};
const drawings = [];
const setting = () => DATA.settings[state.setting];
const shown = () => setting().groups.filter((group) => state.on.has(group.id));
const X_AXES = {rounds: ["round", ""], seconds: ["seconds", ""], bytes: ["sent both ways", "bytes"]};
const $ = (id) => document.getElementById(id);

function line(group) { return {name: group.label, color: group.color, dash: group.dash}; }

// what a group has used by a round, between the rounds that are known
function used(group, part, round) {
  const at = group.rounds, values = group[part];
  let i = at.findIndex((r) => r >= round);
  if (i < 0) i = at.length - 1;
  if (at[i] === round || i === 0) return values[i] * (i === 0 ? round / at[0] : 1);
  const share = (round - at[i - 1]) / (at[i] - at[i - 1]);
  return values[i - 1] + share * (values[i] - values[i - 1]);
}

// a chart with its title; `group` makes it the panel of one method, gone when that is switched off
function figure(grid, title, note, draw, {log = false, choices = null, group = null} = {}) {
  const caption = element("figcaption", {}, element("h3", {}, title)), holder = element("div", {class: "chart"});
  const made = element("figure", {"data-title": title}, caption, holder), side = element("span", {class: "choice"});
  if (choices) {
    const select = element("select", {"aria-label": `${title}: what is shown`}, ...choices.map((c) => element("option", {}, c)));
    state.kind[title] = choices[0];
    select.addEventListener("change", () => { state.kind[title] = select.value; draw(holder, title); });
    side.append(select);
  }
  if (log) {
    const button = element("button", {class: "toggle", type: "button", "aria-pressed": "false"}, "log scale");
    button.addEventListener("click", () => {
      state.log.has(title) ? state.log.delete(title) : state.log.add(title);
      button.setAttribute("aria-pressed", state.log.has(title));
      draw(holder, title);
    });
    side.append(button);
  }
  if (side.childNodes.length) caption.append(side);
  if (note) caption.append(element("span", {class: "soft"}, note));
  if (group) made.querySelector("h3").prepend(swatch(group));
  (group ? panels(grid.parentNode, title.split(":")[0]) : grid).append(made);
  drawings.push(() => {
    made.hidden = group !== null && !state.on.has(group.id);
    if (!made.hidden) draw(holder, title);
  });
}

// panels of one kind stand together: a grid for each
function panels(part, kind) {
  const known = [...part.querySelectorAll(".small")].find((one) => one.dataset.kind === kind), made = known || element("div", {class: "grid small", "data-kind": kind});
  if (!known) part.append(made);
  return made;
}

function section(id, fill) {
  const grid = $(id).querySelector(".grid");
  $(id).querySelectorAll(".small").forEach((one) => one.remove());
  grid.replaceChildren();
  fill(grid);
  $(id).hidden = !$(id).querySelector("figure, .static");
}

// ---- curves ----------------------------------------------------------------------------------------------------
const NAMES = {accuracy: "Test accuracy", test_loss: "Test loss", client_loss: "Loss of the clients' models", loss: "Training loss",
  validation_accuracy: "Validation accuracy", validation_loss: "Validation loss", drift: "Client drift ‖wᵢ − wₜ‖",
  "update/cosine": "Cosine between client updates", "update/agreement": "Agreement ‖mean Δ‖ / mean ‖Δ‖", "update/spread": "Spread of client updates",
  "update/least": "Smallest client update", "update/most": "Largest client update", alpha: "Weight α of the fresh gradient"};
const NOTES = {"update/cosine": "mean over pairs of clients; 1: all move alike", drift: "mean over the clients of a round",
  alpha: "in the mix with the momentum (FedWMSAM)", "radius/mean": "of a round (FedSCAM)"};

// `choices`: name → measure, when one chart can show several
function curveFigure(grid, measure, name = NAMES[measure] || measure, choices = null) {
  figure(grid, name, NOTES[measure], (holder, title) => {
    const [label, unit] = X_AXES[state.x], what = choices ? choices[state.kind[title]] : measure;
    const series = shown().filter((g) => g.curves[what]).map((g) => {
      const c = g.curves[what];
      return {...line(g), x: state.x === "rounds" ? c.r : c.r.map((r) => used(g, state.x, r)), y: c.m, deviation: c.d};
    });
    const share = /accuracy/.test(what) ? "share" : "";
    lineChart(holder, {x: {label, unit}, y: {label: title, unit: share, log: state.log.has(title)}, series, bands: state.bands});
  }, {log: !/cosine|agreement/.test(measure), choices: choices && Object.keys(choices)});
}

function fillCurves() {
  const all = setting().measures, drift = all.filter((m) => /^(drift$|update\/)/.test(m)), kept = all.filter((m) => /^((state|report)\/|alpha$)/.test(m)), radii = all.filter((m) => /^radius\//.test(m));
  section("curves", (grid) => all.filter((m) => ![drift, kept, radii].some((own) => own.includes(m))).forEach((m) => curveFigure(grid, m)));
  section("kept", (grid) => {
    kept.forEach((m) => curveFigure(grid, m));
    if (radii.length) curveFigure(grid, "radius/mean", "Radius ρ of the clients", {mean: "radius/mean", smallest: "radius/least", largest: "radius/most"});
    criticalFigures(grid);
  });
  section("drift", (grid) => {
    drift.forEach((m) => curveFigure(grid, m));
    cosineFigures(grid);
    embeddingFigure(grid);
  });
}

// ---- what is switched on ---------------------------------------------------------------------------------------
function redraw() {
  drawings.forEach((draw) => draw());
  document.querySelectorAll("tr[data-group]").forEach((tr) => tr.classList.toggle("off", !state.on.has(tr.dataset.group)));
}

function swatch(group) {
  const svg = node("svg", {width: 22, height: 8, viewBox: "0 0 22 8", class: "swatch", "aria-hidden": "true"});
  node("line", {x1: 1, x2: 21, y1: 4, y2: 4, stroke: group.color, "stroke-width": 3, "stroke-dasharray": DASHES[group.dash % DASHES.length]}, svg);
  return svg;
}

function fillChips() {
  const chips = $("chips"), groups = setting().groups, change = (f) => () => { f(); fillChips(); redraw(); };
  chips.replaceChildren(...groups.map((group) => {
    const chip = element("button", {class: "chip", type: "button", "aria-pressed": state.on.has(group.id), title: "click: on or off; double click: this one alone"}, swatch(group), group.label);
    chip.addEventListener("click", () => {
      state.on.has(group.id) ? state.on.delete(group.id) : state.on.add(group.id);
      chip.setAttribute("aria-pressed", state.on.has(group.id));
      redraw();
    });
    chip.addEventListener("dblclick", change(() => { groups.forEach((g) => state.on.delete(g.id)); state.on.add(group.id); }));
    return chip;
  }));
  if (groups.length <= 2) return;
  const only = (wanted) => change(() => groups.forEach((g) => (wanted(g) ? state.on.add(g.id) : state.on.delete(g.id))));
  const best = groups.filter((g) => g.on), some = best.length < groups.length ? [[`best ${best.length} of ${groups.length}`, (g) => g.on]] : [];
  const buttons = [...some, ["all", () => true], ["none", () => false]].map(([text, wanted]) => {
    const button = element("button", {class: "plain", type: "button"}, text);
    button.addEventListener("click", only(wanted));
    return button;
  });
  some.length ? chips.prepend(...buttons) : chips.append(...buttons);
}

function show(index) {
  state.setting = index;
  drawings.length = 0;
  document.querySelectorAll("[data-setting]").forEach((part) => { part.hidden = +part.dataset.setting !== index; });
  $("numbers").hidden = !$("numbers").querySelector("[data-setting]:not([hidden])");
  fillChips(); fillCurves(); fillSpectrum(); fillLandscape(); fillClients();
  redraw();
}

function sortable(table) {
  table.querySelectorAll("thead button").forEach((button, column) => button.addEventListener("click", () => {
    const up = button.dataset.order === "down", value = (tr) => +(tr.cells[column].dataset.value ?? NaN), body = table.tBodies[0];
    table.querySelectorAll("thead button").forEach((other) => delete other.dataset.order);
    button.dataset.order = up ? "up" : "down";
    const key = (tr) => (isNaN(value(tr)) ? (up ? Infinity : -Infinity) : value(tr));
    const order = (a, b) => (column ? key(a) - key(b) : a.cells[0].textContent.localeCompare(b.cells[0].textContent));
    body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
  }));
}

DATA.settings.forEach((one) => one.groups.filter((group) => group.on).forEach((group) => state.on.add(group.id)));
document.querySelectorAll("tr[data-group]").forEach((tr) => {
  const group = DATA.settings.flatMap((s) => s.groups).find((g) => g.id === tr.dataset.group);
  tr.cells[0].prepend(swatch(group));
});
document.querySelectorAll("table").forEach(sortable);
$("setting")?.addEventListener("change", (event) => show(+event.target.value));
document.querySelectorAll("[data-x]").forEach((button) => button.addEventListener("click", () => {
  state.x = button.dataset.x;
  document.querySelectorAll("[data-x]").forEach((other) => other.setAttribute("aria-pressed", other === button));
  redraw();
}));
$("bands")?.addEventListener("change", (event) => { state.bands = event.target.checked; redraw(); });
// paper is narrower than a window: charts are drawn anew for it, so that their letters keep their size
const paper = (on) => () => {
  document.body.classList.toggle("paper", on);
  document.querySelectorAll("#reproduce .grid > details").forEach((part) => { part.open = on; });
  redraw();
};
addEventListener("beforeprint", paper(true));
addEventListener("afterprint", paper(false));
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
show(0);
document.documentElement.dataset.ready = "yes";
