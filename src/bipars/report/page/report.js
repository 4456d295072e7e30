"use strict";
// Draws the figures from the JSON in the page. Names are only ever used as text, never as markup.
(() => {
  const LIGHT = ["#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#9a6700", "#56B4E9"]; // Okabe and Ito's palette
  const DARK = ["#ffffff", "#ff8c3a", "#5cb8ff", "#2fd3a2", "#f2a6cf", "#e6b800", "#8fd3ff"];
  const DASHES = ["solid", "dash", "dot"];
  const GRID = 28;
  const SHOWN = 6; // terms of an episode that have a colour each
  const OTHERS = { mean: "averaged over visited states", median: "at their median" };
  const $ = (id) => document.getElementById(id);
  const state = { panel: 0, measure: null, seeds: true, term: 0, method: null, agent: 0, mapTerm: 0, checkpoint: null,
    x: null, y: null, action: "", others: "mean", mask: true, gradient: "weight_gradient_snr" };
  let data;

  const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => innerWidth < 700;
  // Plotly reads some tags in labels: show them as they are.
  const brief = (text) => (String(text).length > 44 ? `${String(text).slice(0, 43)}…` : String(text));
  const plain = (text) => brief(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const faint = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const panel = () => data.panels[state.panel];
  const colour = (i) => (dark() ? DARK : LIGHT)[i % LIGHT.length];
  const dash = (i) => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];

  function layout(x, y, more = {}) {
    const axis = { gridcolor: css("--grid"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--ink"), family: "system-ui, sans-serif", size: narrow() ? 11 : 13 },
      margin: { l: narrow() ? 42 : 60, r: 12, t: 12, b: 44 }, hovermode: "closest",
      hoverlabel: { namelength: -1, bgcolor: css("--sheet"), font: { color: css("--ink") } },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: narrow() ? 11 : 12 } },
      xaxis: { ...axis, title: { text: plain(x) } }, yaxis: { ...axis, title: { text: plain(y), standoff: 6 } }, ...more,
    };
  }

  function draw(id, traces, shape) {
    const settings = { responsive: true, displaylogo: false, displayModeBar: false, };
    Plotly.react($(id), traces, shape, settings);
  }

  function line(steps, values, name, i, more = {}) {
    return { x: steps, y: values, name: plain(name), mode: "lines", type: "scatter", line: { color: colour(i), dash: dash(i), width: 2.5 }, ...more };
  }

  function band(steps, low, high, i, group) {
    const edge = { type: "scatter", mode: "lines", x: steps, line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: group };
    return [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faint(colour(i), i ? 0.18 : 0.1) }];
  }

  function each(steps, seeds, i, group) {
    const thin = { mode: "lines", type: "scatter", hoverinfo: "skip", showlegend: false, legendgroup: group, opacity: 0.35 };
    return seeds.map((seed) => ({ ...thin, x: steps, y: seed, line: { color: colour(i), width: 0.8 } }));
  }

  function drawMeasure(id, key, seeds) {
    const traces = [];
    panel().cells.forEach((cell, i) => {
      const curve = cell.curves[key];
      if (!curve) return;
      const group = `g${i}`;
      if (seeds) traces.push(...each(curve.steps, curve.seeds, i, group));
      traces.push(...band(curve.steps, curve.low, curve.high, i, group));
      traces.push(line(curve.steps, curve.iqm, cell.title, i, { legendgroup: group }));
    });
    draw(id, traces, layout("environment steps", data.measures[key]));
  }

  function drawWeights() {
    const term = panel().terms[state.term], traces = [];
    panel().cells.forEach((cell, i) => {
      const curve = term && cell.weights[term.name];
      if (!curve || (state.method !== "" && state.method !== cell.label)) return;
      const group = `g${i}`;
      if (state.method !== "") {
        traces.push(...each(curve.steps, curve.seeds, i, group));
        traces.push(...band(curve.steps, curve.p10, curve.p90, i, group));
      }
      traces.push(line(curve.steps, curve.p50, cell.title, i, { legendgroup: group }));
    });
    const written = (y, text) => ({ xref: "paper", x: 1, xanchor: "right", y, yanchor: y ? "bottom" : "top", text, showarrow: false, font: { size: 11, color: css("--soft") } });
    const rule = (y, style) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: css("--soft"), width: 1, dash: style } });
    const shapes = [rule(0, "solid"), rule(1, "dot")], annotations = [written(0, "0: does not count"), written(1, "1: as written")];
    const main = panel().cells.find((cell) => cell.label === state.method);
    if (main && main.compared) {
      shapes.push({ type: "line", yref: "paper", x0: main.compared, x1: main.compared, y0: 0, y1: 1, line: { color: css("--soft"), width: 1, dash: "dash" } });
      annotations.push({ yref: "paper", x: main.compared, xanchor: "left", y: 0.5, text: " compared", showarrow: false, font: { size: 11, color: css("--soft") } });
    }
    $("compared-words").hidden = !(main && main.compared);
    draw("weights", traces, layout("environment steps", "weight", { showlegend: true, shapes, annotations }));
  }

  function drawGradients() {
    const traces = [];
    panel().cells.forEach((cell, i) => {
      const curve = cell.gradients[state.gradient];
      if (curve) traces.push(line(curve.steps, curve.median, cell.title, i));
    });
    const log = state.gradient.endsWith("_norm");
    const shape = layout("environment steps", "", { showlegend: true });
    shape.yaxis.type = log ? "log" : "linear";
    if (!log) shape.yaxis.rangemode = "tozero";
    draw("gradients", traces, shape);
  }

  // The weight function itself, evaluated here: any two inputs can be looked at.

  function matrix(packed) {
    if (!packed.array) {
      const bytes = Uint8Array.from(atob(packed.values), (c) => c.charCodeAt(0));
      packed.array = new Float32Array(bytes.buffer);
    }
    return packed.array;
  }

  function inUnits(output, initial, unit) {
    const top = Math.max(Math.abs(initial), unit), end = 1 + Math.log(top / unit);
    const x = output + (Math.abs(initial) > unit ? Math.sign(initial) * end : initial / unit), size = Math.abs(x);
    if (size < 1) return unit * x;
    return Math.sign(x) * (size < end ? unit * Math.exp(size - 1) : top * (1 + size - end));
  }

  function weight(agent, snapshot, input, action, term) {
    const { initial, low, high, simplex } = agent.range, terms = panel().terms.length;
    let outputs = snapshot.scalar;
    if (!outputs) {
      let values = Array.from(input.slice(0, agent.observations));
      if (snapshot.moments) {
        const mean = matrix(snapshot.moments.mean), variance = matrix(snapshot.moments.var), { limit, epsilon } = data.normalise;
        values = values.map((v, i) => Math.max(-limit, Math.min(limit, (v - mean[i]) / Math.sqrt(variance[i] + epsilon))));
      }
      if (agent.form === "state-action") {
        const size = snapshot.layers[0].weight.shape[0] - agent.observations;
        for (let i = 0; i < size; i++) {
          values.push(agent.continuous ? Math.max(-1, Math.min(1, input[agent.observations + i])) : Number(i === action));
        }
      }
      snapshot.layers.forEach((layer, depth) => {
        const w = matrix(layer.weight), b = matrix(layer.bias), [inputs, width] = layer.weight.shape, next = new Array(width);
        for (let j = 0; j < width; j++) {
          let sum = b[j];
          for (let i = 0; i < inputs; i++) sum += values[i] * w[i * width + j];
          next[j] = depth < snapshot.layers.length - 1 ? Math.tanh(sum) : sum;
        }
        values = next;
      });
      outputs = agent.form === "per-action" ? values.slice(action * terms, (action + 1) * terms) : values;
    }
    if (simplex) {
      const largest = Math.max(...outputs), powers = outputs.map((v) => Math.exp(v - largest));
      return powers[term] / powers.reduce((a, b) => a + b);
    }
    let z = outputs[term];
    const unit = snapshot.unit && snapshot.unit[term];
    if (snapshot.base) z = snapshot.base[term] + unit * z;
    else z = unit ? inUnits(z, initial, unit) : z + initial;
    if (low !== null) z = Math.max(low, z);
    if (high !== null) z = Math.min(high, z);
    return z;
  }

  function column(snapshot, i) {
    const states = matrix(snapshot.visited), [rows, width] = snapshot.visited.shape;
    return Array.from({ length: rows }, (_, r) => states[r * width + i]);
  }

  function quantile(sorted, q) {
    return sorted[Math.min(sorted.length - 1, Math.max(0, Math.round(q * (sorted.length - 1))))];
  }

  function ticks(agent, snapshots, i) {
    const all = snapshots.flatMap((s) => column(s, i)).sort((a, b) => a - b);
    let low = quantile(all, 0.005), high = quantile(all, 0.995);
    if (high - low < 1e-6) { low -= 0.5; high += 0.5; }
    const width = (high - low) / GRID;
    return Array.from({ length: GRID }, (_, k) => low + (k + 0.5) * width);
  }

  function heatMap() {
    const agent = panel().inside[state.agent], snapshot = agent.snapshots[state.checkpoint];
    const paper = state.others === "paper" ? panel().weight_map : null;
    const span = (limit) => Array.from({ length: GRID }, (_, k) => -limit + (k + 0.5) * (2 * limit / GRID));
    const xs = paper && state.x === paper.x ? span(paper.x_limit) : ticks(agent, agent.snapshots, state.x);
    const ys = paper && state.y === paper.y ? span(paper.y_limit) : ticks(agent, agent.snapshots, state.y);
    const states = matrix(snapshot.visited), [rows, width] = snapshot.visited.shape;
    const actionAt = agent.observations;
    const bases = [];
    if (state.others === "mean") {
      const take = Math.min(rows, width > 50 ? 16 : 48);
      for (let k = 0; k < take; k++) {
        const r = Math.floor((k * rows) / take);
        bases.push(Array.from(states.slice(r * width, (r + 1) * width)));
      }
    } else {
      const middle = Array.from({ length: width }, (_, i) => quantile(column(snapshot, i).sort((a, b) => a - b), 0.5));
      if (paper) paper.state.forEach((v, i) => { middle[i] = v; });
      bases.push(middle);
    }
    const discrete = agent.continuous === 0;
    const actions = discrete && state.action !== "" ? [Number(state.action)] : null;
    const visitedActions = discrete ? [...new Set(column(snapshot, actionAt))] : [0];
    const seen = visits(xs, ys, states, rows, width, state.x, state.y);
    const z = ys.map((y, row) => xs.map((x, col) => {
      if (state.mask && !seen[row][col]) return null;
      let sum = 0, count = 0;
      for (const base of bases) {
        const input = base.slice();
        input[state.x] = x;
        input[state.y] = y;
        const some = actions || (state.others === "mean" && discrete ? [base[actionAt]] : visitedActions);
        for (const action of some) { sum += weight(agent, snapshot, input, action, state.mapTerm); count += 1; }
      }
      return sum / count;
    }));
    return { xs, ys, z };
  }

  function visits(xs, ys, states, rows, width, i, j) {
    // A cell counts as visited with a sampled state in it or beside it: the sample is small.
    const seen = ys.map(() => xs.map(() => false));
    const place = (ticks, v) => Math.floor((v - ticks[0]) / (ticks[1] - ticks[0]) + 0.5);
    for (let r = 0; r < rows; r++) {
      const col = place(xs, states[r * width + i]), row = place(ys, states[r * width + j]);
      for (let a = row - 1; a <= row + 1; a++) {
        for (let b = col - 1; b <= col + 1; b++) if (seen[a] && b >= 0 && b < GRID) seen[a][b] = true;
      }
    }
    return seen;
  }

  function drawInside() {
    const agents = panel().inside;
    $("inside-part").hidden = !agents.length;
    $("inside-none").hidden = agents.length > 0;
    if (!agents.length) return;
    const agent = agents[state.agent], snapshot = agent.snapshots[state.checkpoint];
    const everywhere = agent.form === "scalar" || !snapshot.layers.length || !panel().terms.length;
    $("map-part").hidden = everywhere;
    $("map-none").hidden = !everywhere;
    $("map-none").textContent = "This agent gives the term the same weight in every state, so there is no map. Choose one that learns weights above.";
    if (!everywhere) { drawMap(agent); drawRanking(agent, snapshot); }
    drawEpisode(agent, snapshot);
  }

  function drawMap(agent) {
    const { xs, ys, z } = heatMap();
    const size = Math.max(0.05, ...z.flat().filter((v) => v !== null).map(Math.abs));
    const scale = [[0, "#b35806"], [0.25, "#f1a340"], [0.5, dark() ? "#2b333c" : "#f1f1f1"], [0.75, "#67a9cf"], [1, "#0a4f8a"]];
    const trace = { type: "heatmap", x: xs, y: ys, z, zmin: -size, zmax: size, colorscale: scale, hoverongaps: false,
      colorbar: { title: { text: "weight" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: "%{x:.3g}, %{y:.3g}: weight %{z:.2f}<extra></extra>" };
    draw("map", [trace], layout(agent.inputs[state.x], agent.inputs[state.y]));
  }

  function drawRanking(agent, snapshot) {
    const ranked = (snapshot.ranking[state.mapTerm] || []).slice().reverse();
    const trace = { type: "bar", orientation: "h", x: ranked.map((r) => 100 * r[1]), y: ranked.map((r) => plain(agent.inputs[r[0]])),
      marker: { color: css("--accent") }, hovertemplate: "%{x:.0f} %<extra></extra>" };
    const shape = layout("% of the variation explained", "");
    shape.xaxis.range = [0, 100];
    shape.yaxis.ticksuffix = " ";
    draw("ranking", ranked.length ? [trace] : [], ranked.length ? shape : { ...shape, xaxis: { ...shape.xaxis, visible: false }, yaxis: { visible: false }, annotations: [{ text: "the weight is nearly the same everywhere", showarrow: false, x: 50, y: 2 }] });
  }

  function drawEpisode(agent, snapshot) {
    const episode = snapshot.episode, steps = episode.reward.map((_, i) => i + 1);
    $("episode-part").hidden = !steps.length; // of an agent trained from Python, there is one of its last checkpoint alone
    if (!steps.length) return;
    const total = (values) => values.reduce((a, b) => a + b, 0);
    const most = panel().terms.map((term, k) => ({ name: term.short, y: episode.parts[k] || [], k })).filter((part) => part.y.length)
      .sort((a, b) => total(b.y.map(Math.abs)) - total(a.y.map(Math.abs)));
    const shown = most.length > SHOWN ? most.slice(0, SHOWN - 1) : most, rest = most.slice(shown.length);
    const bar = (y, name, i) => ({ type: "bar", x: steps, y, name: plain(name), marker: { color: colour(i), line: { width: 0 } } });
    const traces = [bar(episode.reward, "true reward", 0)];
    shown.forEach((part, i) => traces.push(bar(part.y, `weight × ${part.name}`, rest.length ? i + 1 : part.k + 1)));
    if (rest.length) traces.push(bar(steps.map((_, t) => total(rest.map((part) => part.y[t]))), `${rest.length} smaller terms`, SHOWN));
    const shape = layout("step of the episode", "reward of the step", { barmode: "relative", bargap: 0, showlegend: true });
    draw("episode", traces, shape);
    const parts = shown.map((part) => `${part.name} ${total(part.y).toPrecision(3)}`).join(", ");
    $("episode-words").textContent = `A greedy episode of this agent at step ${snapshot.step.toLocaleString("en")}: ${steps.length} steps, ` +
      `true return ${total(episode.reward).toPrecision(3)}${parts ? `; weighted terms in all: ${parts}` : ""}. ` +
      "What the learner was paid at each step, stacked.";
  }

  // Controls: each is a key of `state`, filled anew when the panel changes.

  function fill(id, options, value) {
    const select = $(id);
    select.replaceChildren(...options.map(([key, text]) => {
      const option = document.createElement("option");
      option.value = key;
      option.textContent = text;
      return option;
    }));
    select.value = String(value);
  }

  function choosePanel() {
    const p = panel();
    const measures = Object.entries(data.measures).filter(([key]) => p.cells.some((c) => c.curves[key]) && (key !== "evaluation_action_size" || p.effort));
    if (!measures.some(([key]) => key === state.measure)) state.measure = measures.length ? measures[0][0] : null;
    fill("measure", measures, state.measure);
    const learners = p.cells.filter((c) => c.role === "learner");
    if (state.method === null || (state.method !== "" && !learners.some((c) => c.label === state.method))) state.method = p.main || "";
    fill("term", p.terms.map((t, i) => [i, t.short]), state.term = Math.min(state.term, Math.max(0, p.terms.length - 1)));
    fill("method", [...learners.map((c) => [c.label, c.title]), ["", "all, medians only"]], state.method);
    fill("map-term", p.terms.map((t, i) => [i, t.short]), state.mapTerm = Math.min(state.mapTerm, Math.max(0, p.terms.length - 1)));
    fill("agent", p.inside.map((a, i) => [i, `${a.title}, seed ${a.seed}`]), state.agent = Math.min(state.agent, Math.max(0, p.inside.length - 1)));
    const gradients = Object.entries(data.gradients).filter(([key]) => p.cells.some((c) => c.gradients[key]));
    if (!gradients.some(([key]) => key === state.gradient)) state.gradient = gradients.length ? gradients[0][0] : null;
    fill("gradient", gradients, state.gradient);
    $("weights-part").hidden = !learners.length || !p.terms.length;
    $("effort-part").hidden = !p.effort;
    $("gradients-part").hidden = !gradients.length;
    document.querySelectorAll(".paper").forEach((part) => { part.hidden = Number(part.dataset.panel) !== state.panel; });
    chooseAgent();
  }

  function chooseAgent() {
    const agent = panel().inside[state.agent];
    if (!agent) return;
    const last = agent.snapshots.length - 1;
    if (state.checkpoint === null || state.checkpoint > last) state.checkpoint = last;
    fill("checkpoint", agent.snapshots.map((s, i) => [i, `step ${s.step.toLocaleString("en")}`]), state.checkpoint);
    const inputs = agent.inputs.slice(0, agent.observations + (agent.form === "state-action" ? agent.continuous : 0)).map((name, i) => [i, name]);
    if (state.x === null || state.x >= inputs.length) {
      const ranked = (agent.snapshots[state.checkpoint].ranking[state.mapTerm] || []).map((r) => r[0]).filter((i) => i < inputs.length);
      const free = [...ranked, ...inputs.map(([i]) => i)];
      state.x = free[0] ?? 0;
      state.y = free.find((i) => i !== state.x) ?? 0;
    }
    fill("x", inputs, state.x);
    fill("y", inputs, state.y);
    const discrete = agent.continuous === 0 && (agent.form === "per-action" || agent.form === "state-action");
    $("action-label").hidden = !discrete;
    if (discrete) {
      const actions = [...new Set(agent.snapshots.flatMap((s) => column(s, agent.observations)))].sort((a, b) => a - b);
      fill("action", [["", "as taken"], ...actions.map((a) => [a, String(a)])], state.action);
    }
    const preset = panel().weight_map;
    $("preset").hidden = !preset;
    if (preset) $("preset").textContent = `As in ${preset.title}`;
    if (!preset && state.others === "paper") state.others = "mean";
    fill("others", [...Object.entries(OTHERS), ...(preset ? [["paper", `fixed as in ${preset.title}`]] : [])], state.others);
  }

  function drawAll() {
    if (!data.panels.length) return;
    if (state.measure) drawMeasure("curves", state.measure, state.seeds);
    if (!$("weights-part").hidden) drawWeights();
    if (!$("effort-part").hidden) drawMeasure("effort", "evaluation_action_size", false);
    if (state.gradient) drawGradients();
    drawInside();
  }

  function on(id, key, after, read = (element) => element.value) {
    $(id).addEventListener("change", (event) => { state[key] = read(event.target); after(); });
  }

  function start() {
    data = JSON.parse($("data").textContent);
    const number = (element) => Number(element.value), checked = (element) => element.checked;
    state.panel = Math.min(state.panel, Math.max(0, data.panels.length - 1));
    $("chooser").hidden = data.panels.length < 2;
    $("seeds").checked = state.seeds;
    $("mask").checked = state.mask;
    fill("panel", data.panels.map((p, i) => [i, p.name]), state.panel);
    const forget = () => { state.x = state.y = null; state.checkpoint = null; state.agent = 0; };
    on("panel", "panel", () => { forget(); choosePanel(); drawAll(); }, number);
    on("measure", "measure", drawAll);
    on("seeds", "seeds", drawAll, checked);
    on("term", "term", drawWeights, number);
    on("method", "method", drawWeights);
    on("gradient", "gradient", drawGradients);
    on("agent", "agent", () => { state.x = state.y = null; chooseAgent(); drawInside(); }, number);
    on("map-term", "mapTerm", () => { state.x = state.y = null; chooseAgent(); drawInside(); }, number);
    on("checkpoint", "checkpoint", drawInside, number);
    on("x", "x", drawInside, number);
    on("y", "y", drawInside, number);
    on("action", "action", drawInside);
    on("others", "others", drawInside);
    on("mask", "mask", drawInside, checked);
    $("preset").addEventListener("click", () => {
      const { x, y } = panel().weight_map;
      Object.assign(state, { x, y, others: "paper", mask: false });
      $("mask").checked = false;
      chooseAgent();
      drawInside();
    });
    choosePanel();
    drawAll();
    document.body.dataset.ready = "1";
  }

  async function refresh() {
    const response = await fetch("content");
    if (response.status !== 200) return;
    const text = await response.text();
    if (text === refresh.last) return;
    refresh.last = text;
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const open = [...document.querySelectorAll("details")].map((d) => d.open);
    document.querySelectorAll(".figure").forEach((figure) => Plotly.purge(figure));
    $("content").replaceChildren(...fresh.body.childNodes);
    document.querySelectorAll("details").forEach((d, i) => { d.open = Boolean(open[i]); });
    start();
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  window.bipars = { state, weight, data: () => data, heatMap };
  start();
  if (document.body.dataset.live) {
    setInterval(() => { refresh().catch(() => { document.title = "(not connected) bipars"; }); }, 3000);
  }
})();
