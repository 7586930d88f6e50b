// Facts and figures are shown without this script. It unpacks the arrays of an image and draws the selected maps.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const prefix = data.prefix.length;
const range = (count) => Array.from({ length: count }, (_, i) => i);
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

// ------------------------------------------------------------ colours

// Magma: perceptually uniform, colour-blind safe, and monotonic in lightness, so that it survives grey print.
const HEAT = ramp("000004 140e36 3b0f70 641a80 8c2981 b73779 de4968 f7705c fe9f6d fecf92 fcfdbf");
// Diverging, blue to yellow through grey, and monotonic in lightness.
const SIGNED = ramp("12308f 33509f 566a9f 737a93 8a8a88 aaa278 c8bb66 e4d452 fdec3e");

function ramp(words) {
  const stops = words.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const at = (share) => {
    const place = clamp(share, 0, 1) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (place - low)));
  };
  at.css = `linear-gradient(to right, ${words.split(" ").map((hex) => "#" + hex).join(", ")})`;
  return at;
}

// ------------------------------------------------------------ numbers

const SQUARES = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);

async function unpack(name, image) {
  const element = $(`${name}-data-${image}`);
  if (!element) return null;
  const packed = atob(element.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Decodes rows of values: the maximum of each row, then the square root of each value divided by that maximum.
function rowsOf(buffer, length) {
  if (!buffer) return null;
  const count = buffer.byteLength / (length + 4);
  const largest = new Float32Array(buffer, 0, count);
  const codes = new Uint8Array(buffer, 4 * count);
  return {
    length,
    // The mean of the given rows.
    mean(rows) {
      const sum = new Float32Array(length);
      for (const row of rows) {
        const scale = largest[row] / rows.length;
        for (let i = 0, at = row * length; i < length; i++, at++) sum[i] += scale * SQUARES[codes[at]];
      }
      return sum;
    },
  };
}

async function load(number) {
  const image = data.images[number];
  const [rows, cols] = image.grid;
  const picture = new Image();
  picture.src = image.source;
  const names = ["attention", "rollout", "relevance", "similarity", "components"];
  const [arrays] = await Promise.all([Promise.all(names.map((name) => unpack(name, number))), picture.decode()]);
  const [attention, rollout, relevance, similarity, components] = arrays;
  const coarse = image.coarse ?? image.grid;
  return {
    ...image,
    number,
    picture,
    coarse,
    attention: rowsOf(attention, prefix + coarse[0] * coarse[1]),
    rollout: rowsOf(rollout, prefix + rows * cols),
    relevance: rowsOf(relevance, rows * cols),
    similarity: similarity && new Uint8Array(similarity),
    components: components && new Uint8Array(components),
  };
}

// ------------------------------------------------------------ selection

// The first query: the class token, or the mean of the patches.
const SOURCE = data.query.startsWith("mean") ? "mean" : data.prefix.indexOf("class");
const state = { layer: 0, head: "mean", query: SOURCE, answer: 0 };
state.selected = false; // whether the reader has selected a layer; until then each image opens on its own
state.patch = null; // [row, column] of the patch that was selected last; kept while another token is the query
state.read = null; // the cell of the attention map whose value is shown
state.strength = 0.75;
state.lift = false;
let current = null; // the image that is shown, with its unpacked arrays

const cellName = ([row, col]) => `row ${row + 1}, column ${col + 1}`;
const numbered = (token) => /\d$/.test(data.prefix[token]); // register 1
const tokenName = (token) => (token === "mean" ? data.query : data.prefix[token] + (numbered(token) ? "" : " token"));
const tokenPhrase = (token) => (numbered(token) ? "" : "the ") + tokenName(token);
const queryName = () => (state.query === "patch" ? `the patch at ${cellName(state.patch)}` : tokenPhrase(state.query));
const headName = () => {
  if (data.heads === 1) return "its only head";
  return state.head === "mean" ? `mean of ${data.heads} heads` : `head ${state.head + 1} of ${data.heads}`;
};

// Where relevance starts.
const START = data.source === "attention pooling" ? data.source : `the ${data.source}`;

const scaleCell = ([row, col], from, to) => [
  Math.floor(((row + 0.5) * to[0]) / from[0]),
  Math.floor(((col + 0.5) * to[1]) / from[1]),
];

// Indices of the query in an array over the prefix tokens and a grid.
function queries(query, grid) {
  if (query === "mean") return range(grid[0] * grid[1]).map((i) => prefix + i);
  if (query !== "patch") return [query];
  const [row, col] = scaleCell(state.patch, current.grid, grid);
  return [prefix + row * grid[1] + col];
}

const cache = new Map(); // attention maps of the current query and image
function attentionMap(layer, head) {
  const key = `${layer} ${head}`;
  if (!cache.has(key)) {
    const heads = head === "mean" ? range(data.heads) : [head];
    const rows = queries(state.query, current.coarse);
    const length = current.attention.length;
    const indices = heads.flatMap((h) => rows.map((q) => (layer * data.heads + h) * length + q));
    cache.set(key, current.attention.mean(indices));
  }
  return cache.get(key);
}

function similarityTo([row, col]) {
  const count = current.grid[0] * current.grid[1];
  const at = row * current.grid[1] + col;
  return Float32Array.from({ length: count }, (_, i) => {
    const [low, high] = i < at ? [i, at] : [at, i];
    return current.similarity[(high * (high + 1)) / 2 + low] / 127 - 1;
  });
}

// Percentages of parts that are shown together, with one decimal. The rounded numbers add up to 100.
function parts(shares) {
  const total = shares.reduce((a, b) => a + b, 0) || 1;
  const exact = shares.map((share) => (1000 * share) / total);
  const whole = exact.map(Math.floor);
  const missing = 1000 - whole.reduce((a, b) => a + b, 0);
  const order = range(shares.length).sort((a, b) => whole[a] - exact[a] - (whole[b] - exact[b]));
  for (const i of order.slice(0, missing)) whole[i] += 1;
  return whole.map((value) => `${(value / 10).toFixed(1)}%`);
}

function percent(share) {
  const value = 100 * share;
  if (value <= 0) return "0%";
  return (value >= 9.95 ? value.toFixed(1) : value < 0.001 ? "<0.001" : value.toPrecision(2)) + "%";
}

const signed = (value) => (value ? value.toFixed(2).replace("-", "\u2212") : "0");

// ------------------------------------------------------------ drawing

const LONG = 896; // pixels of the longer side of a large canvas; the page shrinks it

// Draws one pixel per cell.
function cells(grid, colour) {
  const canvas = make("canvas");
  [canvas.height, canvas.width] = grid;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(grid[1], grid[0]);
  for (let i = 0; i < grid[0] * grid[1]; i++) pixels.data.set(colour(i), 4 * i);
  context.putImageData(pixels, 0, 0);
  return canvas;
}

const brighten = (share) => (state.lift ? Math.sqrt(clamp(share, 0, 1)) : share);
const heat = (values, low, high) => (i) => [...HEAT(brighten((values[i] - low) / (high - low || 1))), 255];

// Draws a map over an image, partly transparent: low values darken the image, high values brighten it.
function overlayColour(values, low, high) {
  return (i) => {
    const share = clamp(brighten((values[i] - low) / (high - low || 1)), 0, 1);
    return [...HEAT(share), 255 * state.strength * (0.5 + 0.4 * share)];
  };
}

function fit(canvas) {
  const [width, height] = current.size;
  const scale = LONG / Math.max(width, height);
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, w, h);
  return context;
}

function drawPhoto(context) {
  context.imageSmoothingEnabled = !current.tiny;
  context.imageSmoothingQuality = "high";
  context.drawImage(current.picture, 0, 0, context.canvas.width, context.canvas.height);
}

function drawCells(context, layer) {
  context.imageSmoothingEnabled = false;
  context.drawImage(layer, 0, 0, context.canvas.width, context.canvas.height);
}

// A white outline inside a black one, visible on any background; its width in screen pixels is constant if it fits.
function outline(context, [row, col], grid, wide = 2) {
  const { width, height, clientWidth } = context.canvas;
  const [h, w] = [height / grid[0], width / grid[1]];
  const line = Math.min((wide * width) / (clientWidth || width / 2), Math.min(h, w) / 3);
  for (const [share, colour] of [[2, "#000000"], [1, "#ffffff"]]) {
    context.lineWidth = share * line;
    context.strokeStyle = colour;
    context.strokeRect(col * w, row * h, w, h);
  }
}

function overlay(canvas, values, grid, low, high) {
  const context = fit(canvas);
  drawPhoto(context);
  if (!values) return context;
  context.globalCompositeOperation = "saturation"; // removes colour from the image, so that all colour is the map's
  context.fillStyle = `rgb(128 128 128 / ${0.75 * state.strength})`;
  context.fillRect(0, 0, context.canvas.width, context.canvas.height);
  context.globalCompositeOperation = "source-over";
  drawCells(context, cells(grid, overlayColour(values, low, high)));
  return context;
}

function scale(id, colours, labels) {
  const bar = make("i");
  bar.style.background = colours.css;
  $(id).replaceChildren(bar, ...labels.map((label) => make("span", label)));
}

const heatScale = (id, low, high, shown) =>
  scale(id, HEAT, [0, 0.5, 1].map((share) => shown(low + (high - low) * (state.lift ? share * share : share))));

const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const smallest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

// ------------------------------------------------------------ parts of the page

function drawAttention() {
  const row = attentionMap(state.layer, state.head);
  const values = row.subarray(prefix);
  const high = largest(values);
  const context = overlay($("picture"), values, current.coarse, 0, high);
  const map = fit($("attention-map"));
  drawCells(map, cells(current.coarse, heat(values, 0, high)));
  if (state.query === "patch") {
    outline(context, state.patch, current.grid);
    outline(map, scaleCell(state.patch, current.grid, current.coarse), current.coarse);
  }
  if (state.read) {
    outline(context, state.read, current.coarse, 1);
    outline(map, state.read, current.coarse, 1);
  }
  heatScale("attention-scale", 0, high, percent);
  $("layer").value = state.layer + 1;
  $("layer-name").textContent = `layer ${state.layer + 1} of ${data.layers}`;
  describeAttention(row, values, high);
}

function describeAttention(row, values, high) {
  const rest = values.reduce((a, b) => a + b, 0);
  const [patches, ...others] = parts([rest, ...row.subarray(0, prefix)]);
  const toPrefix = others.map((share, i) => `${share} to ${tokenPhrase(i)}`);
  const summary = `Layer ${state.layer + 1} of ${data.layers}, ${headName()}, from ${queryName()}.`;
  const goesTo = [`${patches} of the attention goes to the patches`, ...toPrefix].join(", ");
  const shares = toPrefix.length ? ` ${goesTo}.` : "";
  $("reading").replaceChildren(make("b", summary), shares);
  const general = state.query === SOURCE && (state.head === "mean" || data.heads === 1);
  $("attention-words").textContent = general ? current.words.attention[state.layer] ?? "" : describeQuery(values, rest);
  const most = values.indexOf(high);
  const cell = state.read ?? [Math.floor(most / current.coarse[1]), most % current.coarse[1]];
  const value = percent(values[cell[0] * current.coarse[1] + cell[1]]);
  const pooled = current.coarse[0] !== current.grid[0] || current.coarse[1] !== current.grid[1];
  const place = `${cellName(cell)}${pooled ? ` of ${current.coarse[0]} × ${current.coarse[1]} cells` : ""}`;
  $("value").textContent = `${state.read ? "" : "Highest at "}${place}: ${value} of the attention`;
}

// Sentences about another query or a single head; those about the first query and the mean of the heads are stored.
function describeQuery(values, total) {
  const [rows, cols] = current.coarse;
  const pooled = rows !== current.grid[0] || cols !== current.grid[1];
  const shares = values.map((value) => value / (total || 1));
  const entropy = shares.reduce((sum, share) => sum - (share > 0 ? share * Math.log(share) : 0), 0);
  const spread = `${Math.round(Math.exp(entropy))} of ${values.length} ${pooled ? "cells" : "patches"}`;
  const words = [`This attention is spread over ${spread} (the exponential of its entropy).`];
  if (state.query === "patch" && !pooled) {
    const [row, col] = state.patch;
    const near = (i) => Math.abs(Math.floor(i / cols) - row) <= 1 && Math.abs((i % cols) - col) <= 1;
    const share = shares.reduce((sum, value, i) => sum + (near(i) ? value : 0), 0);
    words.push(`${percent(share)} of it goes to the patch itself and the patches around it.`);
  }
  const first = SOURCE === "mean" ? "the mean of the patches" : tokenPhrase(SOURCE);
  words.push(`For how to read this layer, select ${first}${data.heads > 1 ? " and the mean of the heads" : ""}.`);
  return words.join(" ");
}

function drawPicture() {
  const context = overlay($("picture"), null);
  outline(context, state.patch, current.grid);
  $("reading").textContent = `Selected: the patch at ${cellName(state.patch)}.`;
}

// A button with a thumbnail map. Existing buttons are reused and redrawn.
function strip(box, maps) {
  box.classList.toggle("few", maps.length <= 8);
  box.style.setProperty("--row", Math.ceil(maps.length / Math.ceil(maps.length / 14))); // rows of equal length
  if (box.children.length !== maps.length) {
    box.replaceChildren(...maps.map(() => {
      const button = Object.assign(make("button"), { type: "button" });
      button.append(make("canvas"), make("span"));
      return button;
    }));
  }
  maps.forEach(({ key, label, title, values, grid, chosen }, i) => {
    const button = box.children[i];
    Object.assign(button.dataset, key);
    button.setAttribute("aria-pressed", chosen);
    button.title = title;
    button.lastChild.textContent = label;
    const canvas = button.firstChild;
    [canvas.height, canvas.width] = grid;
    canvas.style.aspectRatio = `${current.size[0]} / ${current.size[1]}`;
    canvas.getContext("2d").drawImage(cells(grid, heat(values, 0, largest(values))), 0, 0);
  });
}

function drawStrips() {
  const one = (layer, head) => {
    const values = attentionMap(layer, head).subarray(prefix);
    return { values, grid: current.coarse, title: `maximum: ${percent(largest(values))}` };
  };
  strip($("layers"), range(data.layers).map((layer) => ({
    ...one(layer, state.head), key: { layer }, label: layer + 1, chosen: layer === state.layer,
  })));
  for (const button of $("layers").children) {
    button.tabIndex = -1; // keyboards use the slider
    button.setAttribute("aria-label", `layer ${Number(button.dataset.layer) + 1}`);
  }
  const heads = data.heads > 1 ? ["mean", ...range(data.heads)] : [0];
  strip($("heads"), heads.map((head) => ({
    ...one(state.layer, head),
    key: { head },
    label: head === "mean" ? "mean" : head + 1,
    chosen: head === state.head || data.heads === 1,
  })));
  for (const button of $("heads").children) {
    const { head } = button.dataset;
    button.setAttribute("aria-label", head === "mean" ? "mean of the heads" : `head ${Number(head) + 1}`);
  }
}

function pill(words, chosen, key) {
  const button = Object.assign(make("button", words), { type: "button" });
  button.setAttribute("aria-pressed", chosen);
  Object.assign(button.dataset, key);
  return button;
}

function tokens() {
  return [...range(prefix), ...(SOURCE === "mean" ? ["mean"] : []), "patch"];
}

function drawTokens() {
  const focused = $("tokens").contains(document.activeElement) && document.activeElement.dataset.token;
  $("tokens").replaceChildren(...tokens().map((token) => {
    const words = token === "patch" ? `patch at ${cellName(state.patch)}` : tokenName(token);
    return pill(words, token === state.query, { token });
  }));
  if (focused) $("tokens").querySelector(`[data-token="${focused}"]`)?.focus();
}

// Rollout from a query. A patch gives most weight to itself through the residual connections, so the scale ignores it.
function drawRolloutFrom(name, query) {
  const values = current.rollout.mean(queries(query, current.grid)).subarray(prefix);
  const own = query === "patch" ? queries(query, current.grid)[0] - prefix : -1;
  const others = values.filter((_, i) => i !== own);
  const [low, high] = others.length ? [smallest(others), largest(others)] : [0, values[0]];
  const context = overlay($(`${name}-map`), values, current.grid, low, high);
  if (query === "patch") outline(context, state.patch, current.grid);
  heatScale(`${name}-scale`, low, high, percent);
  return values;
}

const ROLLOUT_NOTE = "Rollout weight of each patch.";

function drawRollout() {
  $("rollout-figure").hidden = !current.rollout;
  $("source-figure").hidden = !current.rollout || state.query === SOURCE;
  if (!current.rollout) return;
  drawRolloutFrom("source", SOURCE);
  $("source-title").textContent = `Rollout from the ${data.query}`;
  $("source-value").textContent = ROLLOUT_NOTE;
  const values = drawRolloutFrom("rollout", state.query);
  $("rollout-title").textContent = `Rollout from ${queryName()}`;
  const itself = state.query === "patch" ? values[state.patch[0] * current.grid[1] + state.patch[1]] : 0;
  $("rollout-value").textContent = state.query === "patch"
    ? `${ROLLOUT_NOTE} The colour scale ignores the patch itself (${percent(itself)}).`
    : ROLLOUT_NOTE;
}

function drawRelevance() {
  $("relevance-figure").hidden = $("classes").hidden = $("relevance-words").hidden = !current.relevance;
  if (!current.relevance) return;
  state.answer = Math.min(state.answer, current.classes - 1);
  strip($("classes"), range(current.classes).map((answer) => {
    const label = `${current.answers[answer][0]} ${current.shares[answer]}`;
    const values = current.relevance.mean([answer]);
    return { key: { answer }, label, title: label, values, grid: current.grid, chosen: answer === state.answer };
  }));
  const values = current.relevance.mean([state.answer]);
  const high = largest(values);
  const context = overlay($("relevance-map"), values, current.grid, 0, high);
  if (state.query === "patch") outline(context, state.patch, current.grid);
  heatScale("relevance-scale", 0, high, (value) => (high ? percent(value / high) : "0%"));
  $("relevance-words").textContent = current.words.relevance[state.answer] ?? "";
  $("relevance-title").textContent = `Relevance for ${current.answers[state.answer][0]}`;
  $("relevance-value").textContent = high
    ? `Relative to the patch with the highest relevance. It starts from ${START}.`
    : "The relevance for this class is zero everywhere.";
}

function drawPatches() {
  $("plain-figure").hidden = !current.attention; // without attention, the image above has no overlay
  outline(overlay($("plain-map"), null), state.patch, current.grid);
  $("plain-title").textContent = "Image";
  $("similarity-figure").hidden = !current.similarity;
  if (current.similarity) {
    const values = similarityTo(state.patch);
    const own = state.patch[0] * current.grid[1] + state.patch[1];
    const most = largest(values.map((value, i) => (i === own ? 0 : Math.abs(value)))) || 1;
    const context = fit($("similarity-map"));
    drawCells(context, cells(current.grid, (i) => [...SIGNED((values[i] / most + 1) / 2), 255]));
    outline(context, state.patch, current.grid);
    scale("similarity-scale", SIGNED, [-most, 0, most].map(signed));
    $("similarity-title").textContent = `Similarity to the patch at ${cellName(state.patch)}`;
    $("similarity-value").textContent = "Cosine similarity with every other patch: 1 is equal, 0 is unrelated.";
  }
  $("components-figure").hidden = !current.components;
  if (current.components) {
    const context = fit($("components-map"));
    drawCells(context, cells(current.grid, (i) => [...current.components.subarray(3 * i, 3 * i + 3), 255]));
    outline(context, state.patch, current.grid);
    $("components-title").textContent = current.attention ? "Token components" : "Components";
  }
}

// ------------------------------------------------------------ prediction by depth

const LINES = 5; // lines; more would be hard to distinguish

function shape(name, attributes, words) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

function sample(answer) {
  const svg = shape("svg", { class: "sample", width: 24, height: 8, "aria-hidden": true });
  svg.append(shape("path", { class: `line s${answer}`, d: "M0,4L24,4" }));
  svg.append(shape("circle", { class: `dot s${answer}`, cx: 12, cy: 4, r: 3 }));
  return svg;
}

function drawDepth() {
  const box = $("depth");
  $("depths").hidden = !current.depth.length;
  if (!current.depth.length) return;
  const [left, right, top, bottom] = [46, 12, 10, 44];
  const width = Math.max(box.clientWidth, 240);
  const height = clamp(width * 0.6, 220, 340);
  const last = current.depth.length - 1;
  const answers = range(Math.min(current.answers.length, LINES));
  const peak = largest(current.depth.flatMap((row) => row.slice(0, LINES)));
  const most = [0.01, 0.02, 0.04, 0.08, 0.12, 0.2, 0.4, 0.6, 0.8].find((limit) => peak <= limit) ?? 1;
  const x = (depth) => left + ((width - left - right) * depth) / Math.max(last, 1);
  const y = (share) => top + (height - top - bottom) * (1 - share / most);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.setAttribute("aria-label", "Probability of each class by depth; the table has the numbers");
  const tick = (x, y, anchor, words) =>
    svg.append(shape("text", { class: "tick", x, y, "text-anchor": anchor }, words));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(shape("line", { class: "rule", x1: left, x2: width - right, y1: y(share * most), y2: y(share * most) }));
    tick(left - 8, y(share * most) + 4, "end", `${Number((100 * share * most).toPrecision(3))}%`);
  }
  const step = [1, 2, 3, 4, 6, 8, 12, 16].find((size) => (last / size) * 34 <= width - left - right) ?? 24;
  for (let depth = 0; depth <= last; depth += step) tick(x(depth), height - bottom + 18, "middle", depth);
  tick((left + width - right) / 2, height - 6, "middle", "after block (0: the embeddings)");
  for (const answer of [...answers].reverse()) {
    const points = current.depth.map((row, depth) => `${x(depth).toFixed(1)},${y(row[answer]).toFixed(1)}`);
    svg.append(shape("path", { class: `line s${answer}`, d: `M${points.join("L")}` }));
    current.depth.forEach((row, depth) => {
      const dot = shape("circle", { class: `dot s${answer}`, cx: x(depth), cy: y(row[answer]), r: 3 });
      dot.append(shape("title", {}, `${current.answers[answer][0]}, after block ${depth}: ${percent(row[answer])}`));
      svg.append(dot);
    });
  }
  box.replaceChildren(svg);
  $("depth-key").replaceChildren(...answers.map((answer) => {
    const key = make("span", "", "key name");
    key.append(sample(answer), current.answers[answer][0]);
    return key;
  }));
}

function depthTable() {
  const line = (...parts) => {
    const row = make("tr");
    row.append(...parts);
    return row;
  };
  const named = current.answers.map(([name], i) => {
    const head = Object.assign(make("th", "", "num"), { title: name });
    head.append(...(i < LINES ? [sample(i)] : []), make("div", name, "cut name"));
    return head;
  });
  if (current.shares.length > named.length) named.push(make("th", "all others", "num"));
  const [head, body] = [make("thead"), make("tbody")];
  head.append(line(make("th", "block"), Object.assign(make("th", "top class"), { colSpan: 2 }), ...named));
  current.depth.forEach((_, depth) => {
    const [name, share] = current.top[depth];
    const first = Object.assign(make("th", depth || "embeddings"), { scope: "row" });
    const numbers = [share, ...current.depthShares[depth]].map((value) => make("td", value, "num"));
    body.append(line(first, make("td", name, "name"), ...numbers));
  });
  $("depth-table").replaceChildren(head, body);
}

// ------------------------------------------------------------ update everything

function draw() {
  if (!current) return;
  if (current.attention) {
    drawTokens();
    drawAttention();
    drawStrips();
  } else drawPicture();
  if ($("rolled")) {
    drawRollout();
    drawRelevance();
  }
  if ($("patches")) drawPatches();
}

function change(changes) {
  const again = "query" in changes || "patch" in changes || "image" in changes;
  Object.assign(state, changes);
  if (again) {
    cache.clear();
    state.read = null;
  }
  draw();
}

const selectLayer = (layer) => change({ layer, selected: true });

async function show(number) {
  delete document.body.dataset.ready;
  state.image = number;
  const opened = await load(number);
  if (state.image !== number) return; // another image was selected in the meantime
  current = opened;
  document.body.style.setProperty("--aspect", current.size[0] / current.size[1]);
  const [rows, cols] = current.grid;
  const [row, col] = state.patch ?? [Math.floor(rows / 2), Math.floor(cols / 2)];
  if (!state.selected) state.layer = current.opening;
  change({ image: number, patch: [Math.min(row, rows - 1), Math.min(col, cols - 1)] });
  [...$("images").children].forEach((button, i) => button.setAttribute("aria-pressed", i === number));
  $("picture").setAttribute("aria-label", `${current.name}. Arrow keys move the query patch.`);
  drawCaption();
  drawWords();
  if ($("depths")) {
    drawDepth();
    if (current.depth.length) depthTable();
  }
  document.body.dataset.ready = "true";
}

function drawCaption() {
  const named = current.shares.map((share, i) => [current.answers[i]?.[0] ?? "all others", share]);
  const answers = ($("answers") ? [] : named).flatMap(([answer, share], i) => [
    i ? ", " : " Prediction: ",
    make("span", answer, "name"),
    ` ${share}`,
  ]);
  $("caption").replaceChildren(make("b", current.name, "name"), ...answers);
  $("answers")?.replaceChildren(...named.map(([answer, share]) => {
    const [line, bar] = [make("li"), make("i")];
    bar.style.setProperty("--share", share);
    line.append(make("span", answer, "name"), make("span", share, "num"), bar);
    return line;
  }));
}

// Sentences about the whole image. Those about a layer or a class change with it.
function drawWords() {
  for (const name of ["opening", "rollout", "similarity", "components", "depth"]) {
    const element = $(name === "opening" ? name : `${name}-words`);
    if (!element) continue;
    element.textContent = current.words[name];
    element.hidden = !current.words[name];
  }
}

// ------------------------------------------------------------ pointer and keys

function cellAt(canvas, event, grid) {
  const box = canvas.getBoundingClientRect();
  return [
    clamp(Math.floor(((event.clientY - box.top) / box.height) * grid[0]), 0, grid[0] - 1),
    clamp(Math.floor(((event.clientX - box.left) / box.width) * grid[1]), 0, grid[1] - 1),
  ];
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function cellAfterKey(event, cell, grid) {
  if (event.ctrlKey || event.altKey || event.metaKey || !ARROWS[event.key]) return null;
  event.preventDefault();
  const [down, right] = ARROWS[event.key];
  return [clamp(cell[0] + down, 0, grid[0] - 1), clamp(cell[1] + right, 0, grid[1] - 1)];
}

function selectPatchOnClick(canvas) {
  canvas.addEventListener("click", (event) => {
    if (current) change({ patch: cellAt(canvas, event, current.grid), query: "patch" });
  });
}

function showValueOnHover(canvas) {
  let at = "";
  canvas.addEventListener("pointermove", (event) => {
    if (!current?.attention) return;
    const cell = cellAt(canvas, event, current.coarse);
    if (state.read && at === String(cell)) return;
    at = String(cell);
    state.read = cell;
    drawAttention();
  });
  canvas.addEventListener("pointerleave", (event) => {
    if (!current?.attention || event.pointerType === "touch") return; // a touch ends: keep showing the value
    state.read = null;
    drawAttention();
  });
}

// Shows the value under the pointer below a map.
function showValueBelow(name, words) {
  const canvas = $(`${name}-map`);
  canvas.addEventListener("pointermove", (event) => {
    if (!current) return;
    const cell = cellAt(canvas, event, current.grid);
    $(`${name}-value`).textContent = `${cellName(cell)}: ${words(cell[0] * current.grid[1] + cell[1])}`;
  });
  canvas.addEventListener("pointerleave", draw);
}

const cycle = (list, value, step) => list[(list.indexOf(value) + step + list.length) % list.length];

const KEYS = {
  l: (step) => current.attention && selectLayer(clamp(state.layer + step, 0, data.layers - 1)),
  h: (step) => current.attention && change({ head: cycle(["mean", ...range(data.heads)], state.head, step) }),
  t: (step) => current.attention && change({ query: cycle(tokens(), state.query, step) }),
  i: (step) => show(cycle(range(data.images.length), state.image, step)).catch(fail),
  c: (step) => current.relevance && change({ answer: cycle(range(current.classes), state.answer, step) }),
};

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || !current) return;
  KEYS[event.key.toLowerCase()]?.(event.shiftKey ? -1 : 1);
}

// Arrow keys move between the buttons of a group, as in a toolbar.
function toolbar(box, chosen) {
  box.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && current) chosen(button.dataset);
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const next = step && [...box.children][[...box.children].indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
}

function listen() {
  const number = (word) => (/^\d+$/.test(word) ? Number(word) : word);
  toolbar($("images"), ({ image }) => show(Number(image)).catch(fail));
  selectPatchOnClick($("picture"));
  $("picture").addEventListener("keydown", (event) => {
    const patch = current && cellAfterKey(event, state.patch, current.grid);
    if (patch) change({ patch, query: "patch" });
  });
  document.addEventListener("keydown", onKey);
  if ($("attention-map")) {
    const map = $("attention-map");
    [$("picture"), map].forEach(showValueOnHover);
    map.addEventListener("click", (event) => change({ read: cellAt(map, event, current.coarse) }));
    map.addEventListener("keydown", (event) => {
      const read = current && cellAfterKey(event, state.read ?? [0, -1], current.coarse);
      if (read) change({ read });
    });
    map.addEventListener("blur", () => change({ read: null }));
    $("layer").max = data.layers;
    $("layer").addEventListener("input", () => selectLayer(Number($("layer").value) - 1));
    $("strength").addEventListener("input", () => change({ strength: Number($("strength").value) / 100 }));
    $("lift").addEventListener("change", () => change({ lift: $("lift").checked }));
    toolbar($("layers"), ({ layer }) => selectLayer(Number(layer)));
    toolbar($("heads"), ({ head }) => change({ head: number(head) }));
    toolbar($("tokens"), ({ token }) => change({ query: number(token) }));
  }
  if ($("rolled")) {
    $("relevance-title").ariaLive = "polite";
    toolbar($("classes"), ({ answer }) => change({ answer: Number(answer) }));
    ["source-map", "rollout-map", "relevance-map"].forEach((id) => selectPatchOnClick($(id)));
    showValueBelow("source", (i) => percent(current.rollout.mean(queries(SOURCE, current.grid))[prefix + i]));
    showValueBelow("rollout", (i) => percent(current.rollout.mean(queries(state.query, current.grid))[prefix + i]));
    showValueBelow("relevance", (i) => {
      const values = current.relevance.mean([state.answer]);
      return `${percent(values[i] / (largest(values) || 1))} of the maximum`;
    });
  }
  if ($("patches")) {
    ["plain-map", "similarity-map", "components-map"].forEach((id) => selectPatchOnClick($(id)));
    showValueBelow("similarity", (i) => `cosine ${signed(similarityTo(state.patch)[i])}`);
  }
  new ResizeObserver(redrawOnResize()).observe($("look"));
}

// Redraw on resize: outlines and text keep their size in screen pixels.
function redrawOnResize() {
  let width = $("look").clientWidth;
  return () => {
    if (!current || width === $("look").clientWidth) return;
    width = $("look").clientWidth;
    draw();
    if ($("depths")) drawDepth();
  };
}

function thumbnails() {
  $("images").replaceChildren(...data.images.map((image, number) => {
    const button = pill("", false, { image: number });
    button.title = image.name;
    button.append(Object.assign(make("img"), { src: image.source, alt: "" }), make("span", image.name, "name"));
    return button;
  }));
}

function fail(error) {
  const old = typeof DecompressionStream === "undefined";
  $("problem").textContent = old
    ? "This browser is too old for the maps: it has no DecompressionStream. Chrome 80, Firefox 113, Safari 16.4 have."
    : `The maps cannot be drawn: ${error.message}`;
  $("problem").hidden = false;
}

async function start() {
  if (!data.images.length) return void (document.body.dataset.ready = "true");
  for (const section of document.querySelectorAll("section.live")) section.hidden = false;
  thumbnails();
  listen();
  await show(0);
}

start().catch(fail);
