"use strict";
// Charts of what `fedkeel analyse` found, and of what is tracked as maps.

const having = (name) => setting().groups.filter((g) => g.diagnostics[name]);

function square(table, names, say) {
  const every = Math.ceil(names.length / 8), ticks = names.map((n, i) => [i, String(n)]).filter((_, i) => i % every === 0);
  return {rows: table, square: true, x: {label: "client", ticks}, y: {ticks, room: 30}, say: (i, j, v) => `${say} of clients ${names[i]} and ${names[j]}: ${short(v)}`};
}

function cosineFigures(grid) {
  for (const group of having("drift")) {
    const d = group.diagnostics.drift;
    figure(grid, `Update cosines: ${group.label}`, `after round ${d.round}; −1 blue, 1 orange; mean ${short(d.cosine)}`,
      (holder) => heatMap(holder, {...square(d.cosines, d.clients, "cosine"), title: "cosines", low: -1, high: 1, ramp: TWO_SIDED}), {group});
  }
}

function embeddingFigure(grid) {
  const groups = having("embedding");
  if (!groups.length) return;
  const kinds = [...new Set(groups.flatMap((g) => Object.entries(g.diagnostics.embedding.kinds).flatMap(([k, v]) => [`${k}s, PCA`, ...(v.tsne ? [`${k}s, t-SNE`] : [])])))];
  figure(grid, "Clients as points", "each method in a plane of its own; closer together: clients agree more; numbers are classes", (holder, title) => {
    const [kind, way] = state.kind[title].split("s, "), key = way === "PCA" ? "pca" : "tsne";
    const series = shown().filter((g) => g.diagnostics.embedding?.kinds[kind]?.[key]).map((g) => {
      const found = g.diagnostics.embedding.kinds[kind];
      return {...line(g), points: found[key].map((p) => (p.length > 1 ? p : [p[0], 0])), names: found.names, classes: found.classes};
    });
    const axis = (n) => (way === "PCA" ? `component ${n}` : `t-SNE ${n}`);
    scatter(holder, {title, series, x: {label: axis(1)}, y: {label: axis(2)}});
  }, {choices: kinds});
}

// layers below each other: names that fit, the end of those that do not
function layerTicks(names, room = 104) {
  const fits = Math.floor((room - 8) / 5.6), every = Math.ceil(names.length / 24);
  return {room, ticks: names.map((n, i) => [i, n.length > fits ? `…${n.slice(1 - fits)}` : n]).filter((_, i) => i % every === 0)};
}

function roundTicks(rounds) {
  const every = Math.ceil(rounds.length / 6);
  return {label: "round", ticks: rounds.map((r, i) => [i, String(r)]).filter((_, i) => i % every === 0)};
}

function criticalFigures(grid) {
  for (const group of setting().groups.filter((g) => g.critical)) {
    const {layers, rounds, values} = group.critical;
    figure(grid, `Critical layers: ${group.label}`, "share of the clients that marked the layer; darker: more of them", (holder) => heatMap(holder, {
      rows: layers.map((_, i) => values.map((row) => row[i])), title: "critical layers", low: 0, high: 1, ramp: BLUES, tall: 18, x: roundTicks(rounds), y: layerTicks(layers),
      say: (i, j, v) => `${layers[i]}, round ${rounds[j]}: ${(100 * v).toFixed(0)} % of the clients`}), {group});
  }
}

function fillSpectrum() {
  section("spectrum", (grid) => {
    const tracked = setting().groups.filter((g) => g.spectra);
    if (tracked.length) {
      figure(grid, "Distance between clients by band", "Dist(m) of client updates, mean over the tracked rounds; band 1 is the lowest", (holder, title) => {
        const series = shown().filter((g) => g.spectra).map((g) => ({...line(g), marks: true, x: g.spectra.values[0].map((_, i) => i + 1),
          y: g.spectra.values[0].map((_, m) => g.spectra.values.reduce((a, row) => a + row[m], 0) / g.spectra.values.length)}));
        lineChart(holder, {x: {label: "band", unit: ""}, y: {label: "Dist(m)", log: state.log.has(title)}, series});
      }, {log: true});
    }
    const analysed = having("spectrum");
    if (analysed.length) {
      const kinds = [...new Set(analysed.flatMap((g) => Object.keys(g.diagnostics.spectrum.kinds)))];
      const choices = kinds.flatMap((k) => [`${k}: Dist(m)`, `${k}: Std(m)`, `${k}: variance`]);
      figure(grid, "Spectrum at the end", "between clients, at the last model", (holder, title) => {
        const [kind, what] = state.kind[title].split(": "), key = {"Dist(m)": "distance", "Std(m)": "deviation", variance: "variance"}[what];
        const series = shown().filter((g) => g.diagnostics.spectrum?.kinds[kind]).map((g) => {
          const y = g.diagnostics.spectrum.kinds[kind][key];
          return {...line(g), marks: true, x: y.map((_, i) => i + 1), y};
        });
        lineChart(holder, {x: {label: "band", unit: ""}, y: {label: what, log: state.log.has(title)}, series});
      }, {log: true, choices});
    }
    const values = tracked.flatMap((g) => g.spectra.values.flat()).filter((v) => v > 0), low = Math.min(...values), high = Math.max(...values);
    for (const group of tracked) {
      const rows = group.spectra.values[0].map((_, m) => group.spectra.values.map((row) => row[m])), rounds = group.spectra.rounds;
      figure(grid, `Bands over rounds: ${group.label}`, `Dist(m): ${short(low)} dark to ${short(high)} light, logarithmic`, (holder) => heatMap(holder, {rows: rows.map((row) => row.map((v) => v || null)),
        title: "bands over rounds", low, high, log: true, ramp: RAMP, tall: 15, x: roundTicks(rounds), y: {label: "band", room: 38, ticks: rows.map((_, m) => [m, String(m + 1)])},
        say: (i, j, v) => `band ${i + 1}, round ${rounds[j]}: ${short(v)}`}), {group});
    }
    for (const group of analysed.filter((g) => Object.values(g.diagnostics.spectrum.kinds)[0].layers)) {
      const kinds = group.diagnostics.spectrum.kinds;
      figure(grid, `Bands by layer: ${group.label}`, "between clients, at the last model; darker: farther apart", (holder, title) => {
        const [kind, what] = state.kind[title].split(": "), found = kinds[kind][what === "Dist(m)" ? "layers" : "layer_deviation"] || {};
        const names = Object.keys(found), rows = names.map((n) => found[n]), values = rows.flat().filter((v) => v > 0);
        if (!values.length) return holder.replaceChildren("all zero");
        heatMap(holder, {rows: rows.map((row) => row.map((v) => v || null)), title, low: Math.max(Math.min(...values), Math.max(...values) / 1e3), high: Math.max(...values), log: true, ramp: BLUES, tall: 15,
          x: {label: "band", ticks: rows[0].map((_, m) => [m, String(m + 1)])}, y: layerTicks(names), say: (i, j, v) => `${names[i]}, band ${j + 1}: ${short(v)}`});
      }, {group, choices: Object.keys(kinds).flatMap((k) => [`${k}: Dist(m)`, `${k}: Std(m)`])});
    }
    for (const group of analysed) {
      const {before, after} = group.diagnostics.spectrum.divergence, names = Object.keys(before);
      figure(grid, `Divergence by layer: ${group.label}`, `dashed: without the lowest ${short(100 * group.diagnostics.spectrum.ratio)} % of frequencies`, (holder, title) => lineChart(holder, {
        x: {label: "layer", unit: "", names}, y: {label: "divergence", log: state.log.has(title)},
        series: [["all frequencies", before, 0], ["filtered", after, 1]].map(([name, d, dash]) => ({name, color: group.color, dash, marks: true, x: names.map((_, i) => i + 1), y: names.map((n) => d[n])}))}), {log: true, group});
    }
  });
}

function fillLandscape() {
  section("landscape", (grid) => {
    const groups = having("landscape");
    if (groups.length) {
      figure(grid, "Loss along one direction", groups[0].diagnostics.landscape.line.along, (holder, title) => lineChart(holder, {
        x: {label: "distance along the direction", unit: ""}, y: {label: "loss", log: state.log.has(title)},
        series: shown().filter((g) => g.diagnostics.landscape).map((g) => ({...line(g), x: g.diagnostics.landscape.line.x, y: g.diagnostics.landscape.line.values}))}), {log: true});
      const values = groups.flatMap((g) => g.diagnostics.landscape.plane.values.flat()).sort((a, b) => a - b);
      const low = values[0], high = values[Math.floor(0.95 * (values.length - 1))], draws = [];
      const again = () => draws.forEach((draw) => draw());
      if (groups.length > 1) figure(grid, "Loss surfaces in one frame", "each method around its own last model; drag to turn", (holder, title) => {
        const sheets = shown().filter((g) => g.diagnostics.landscape).map((g) => ({rows: g.diagnostics.landscape.plane.values, color: g.color}));
        draws[groups.length] = surface(holder, {sheets, low, high, title}, state.turn, again);
      });
      groups.forEach((group, k) => {
        const plane = group.diagnostics.landscape.plane;
        figure(grid, `Loss surface: ${group.label}`, `${short(low)} dark to ${short(high)} light; drag to turn`,
          (holder, title) => { draws[k] = surface(holder, {sheets: [{rows: plane.values}], low, high, title}, state.turn, again); }, {group});
      });
      for (const group of groups) {
        const plane = group.diagnostics.landscape.plane, ends = plane.x.map((v, i) => [i, short(v)]).filter((_, i) => i % Math.max(1, (plane.x.length - 1) / 4) === 0);
        figure(grid, `Loss from above: ${group.label}`, plane.along, (holder) => heatMap(holder, {rows: plane.values, title: "loss", low, high, ramp: RAMP, square: true,
          x: {label: "first direction", ticks: ends}, y: {label: "second", ticks: ends, room: 48}, say: (i, j, v) => `(${short(plane.x[j])}, ${short(plane.y[i])}): loss ${short(v)}`}), {group});
      }
    }
    const curved = having("hessian");
    if (curved.length) figure(grid, "Top Hessian eigenvalues", "of the training loss at the last model", (holder, title) => lineChart(holder, {
      x: {label: "rank", unit: ""}, y: {label: "eigenvalue", log: state.log.has(title)},
      series: shown().filter((g) => g.diagnostics.hessian).map((g) => ({...line(g), marks: true, x: g.diagnostics.hessian.eigenvalues.map((_, i) => i + 1), y: g.diagnostics.hessian.eigenvalues}))}), {log: true});
    const alike = having("cka").filter((g) => g.diagnostics.cka.layers), least = Math.min(...alike.flatMap((g) => Object.values(g.diagnostics.cka.layers).flat(2)));
    const layered = having("cka"), layerNames = layered.length ? Object.keys(layered[0].diagnostics.cka.mean) : [];
    if (layered.length) figure(grid, "CKA of clients by layer", "mean over pairs of clients, features after local training; 1: alike", (holder) => lineChart(holder, {
      x: {label: "layer", unit: "", names: layerNames}, y: {label: "CKA"}, series: shown().filter((g) => g.diagnostics.cka).map((g) => {
        const y = Object.values(g.diagnostics.cka.mean);
        return {...line(g), marks: true, x: y.map((_, i) => i + 1), y};
      })}));
    for (const group of alike) {
      const d = group.diagnostics.cka;
      figure(grid, `CKA of clients: ${group.label}`, `features after local training; ${short(least)} dark to 1 light`, (holder, title) => heatMap(holder,
        {...square(d.layers[state.kind[title]], d.clients, "CKA"), title: "CKA", low: least, high: 1, ramp: RAMP}), {choices: Object.keys(d.layers).reverse(), group});
    }
  });
}

function fillClients() {
  section("clients", (grid) => {
    const served = having("drift").filter((g) => g.diagnostics.drift.accuracies?.length);
    if (served.length) figure(grid, "Accuracy on each client's own samples", "of the last server model; clients from the worst served to the best", (holder, title) => lineChart(holder, {
      x: {label: "client, by accuracy", unit: ""}, y: {label: title, unit: "share"}, series: shown().filter((g) => served.includes(g)).map((g) => {
        const y = [...g.diagnostics.drift.accuracies].sort((a, b) => a - b);
        return {...line(g), marks: true, x: y.map((_, i) => i + 1), y};
      })}));
    for (const table of setting().labels) {
      const columns = table.sizes.length, classes = table.shares.length, step = Math.ceil(columns / 10);
      const name = (j) => (table.group === 1 ? `client ${j}` : `clients ${j * table.group}–${Math.min((j + 1) * table.group, table.clients) - 1}`);
      figure(grid, `Labels of ${table.clients} clients`, `partition seed ${table.seed}; heterogeneity ${short(table.score)} (0: iid, 1: one class per client); darker: a larger share of the client's samples`, (holder) => heatMap(holder, {
        rows: table.shares, title: "labels by client", low: 0, high: 1, ramp: BLUES, zero: true, tall: 18,
        x: {label: "client", ticks: table.sizes.map((_, j) => [j, String(j * table.group)]).filter((_, j) => j % step === 0)},
        y: {label: "class", room: 38, ticks: table.shares.map((_, i) => [i, String(i)]).filter((_, i) => i % Math.ceil(classes / 12) === 0)},
        say: (i, j, v) => `${name(j)}: ${(100 * v).toFixed(1)} % of ${table.sizes[j]} samples are class ${i}`}));
    }
  });
}

