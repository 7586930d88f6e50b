// All findings are shown without this script. It marks images and exports the marks; it changes no file.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const items = [...document.querySelectorAll(".item")];
const suggestion = (item) => data.classes[Number(item.dataset.suggested ?? -1)];
const KEY = `vitreous-data-check-${data.id}`;
const marks = stored(); // image number -> { action: "keep" | "relabel" | "remove", label }
let current = null;

// Marks survive a reload where the browser lets a file store something.
function stored() {
  try {
    const entries = Object.entries(JSON.parse(localStorage.getItem(KEY)) ?? {});
    return new Map(entries.filter(([number]) => Object.hasOwn(data.images, number)));
  } catch {
    return new Map();
  }
}

function store() {
  try {
    localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(marks)));
  } catch {
    // Private windows forbid it.
  }
}

// ------------------------------------------------------------ marks

function mark(number, action, label = "") {
  if (action) marks.set(number, { action, label });
  else marks.delete(number);
  store();
  show();
}

function show() {
  for (const item of items) {
    const found = marks.get(item.dataset.image);
    if (found) item.dataset.state = found.action;
    else delete item.dataset.state;
    item.dataset.newLabel = found?.label ?? "";
    for (const button of item.querySelectorAll("[data-mark]")) {
      const other = button.dataset.mark === "relabel" && found?.label !== suggestion(item);
      button.setAttribute("aria-pressed", found?.action === button.dataset.mark && !other);
    }
  }
  const counts = ["keep", "relabel", "remove"].map((a) => [...marks.values()].filter((m) => m.action === a).length);
  $("count").textContent = marks.size ? `${counts[0]} keep, ${counts[1]} new label, ${counts[2]} remove` : "no marks";
  for (const id of ["csv", "script", "clear"]) $(id).disabled = !marks.size;
  const chosen = current && marks.get(current.dataset.image);
  $("other").value = chosen?.action === "relabel" ? String(data.classes.indexOf(chosen.label)) : "";
  $("other").disabled = !current || !data.classes.length;
}

function toggle(item, action) {
  const number = item.dataset.image;
  const label = action === "relabel" ? suggestion(item) : "";
  if (action === "relabel" && label === undefined) return false;
  const before = marks.get(number);
  const same = before && before.action === action && before.label === label;
  mark(number, same ? "" : action, label);
  return true;
}

function move(step) {
  const next = items[current ? items.indexOf(current) + step : 0];
  if (!next) return;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("focusin", (event) => {
  const item = event.target.closest(".item");
  if (item && item !== current) {
    current = item;
    show();
  }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-mark]");
  if (button) toggle(button.closest(".item"), button.dataset.mark);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input")) return;
  const steps = { ArrowRight: 1, j: 1, ArrowLeft: -1, k: -1 };
  const actions = { 1: "keep", 2: "relabel", 3: "remove" };
  if (event.key in steps) {
    if (event.target.closest(".scroll")) return; // the arrows scroll a table
    move(steps[event.key]);
  } else if (event.key in actions && current) {
    const number = current.dataset.image;
    const before = marks.has(number);
    if (toggle(current, actions[event.key]) && (marks.has(number) || !before)) move(1);
  } else if (event.key === "0" && current) mark(current.dataset.image, "");
  else if (event.key.toLowerCase() === "l" && current && data.classes.length) $("other").focus();
  else return;
  event.preventDefault();
});
data.classes.forEach((name, index) => $("other").append(Object.assign(make("option", name), { value: String(index) })));
$("other").addEventListener("change", () => {
  if (!current) return;
  const name = data.classes[Number($("other").value)];
  const own = data.images[current.dataset.image].label;
  if ($("other").value === "" || name === own) mark(current.dataset.image, $("other").value === "" ? "" : "keep");
  else mark(current.dataset.image, "relabel", name);
});
$("other").addEventListener("keydown", (event) => {
  if (event.key === "Escape" || event.key === "Enter") current?.focus();
});
$("clear").addEventListener("click", () => {
  marks.clear();
  store();
  show();
});

// ------------------------------------------------------------ exports

const sorted = () => [...marks].sort(([a], [b]) => a - b).map(([number, found]) => ({ ...data.images[number], ...found, own: data.images[number].label, to: found.label }));

// File names need not be UTF-8: Python represents such bytes as U+DC80 to U+DCFF, and they are written as bytes again.
function bytes(words) {
  const encoder = new TextEncoder();
  const parts = [];
  let run = "";
  for (const character of words) {
    const code = character.codePointAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) {
      parts.push(encoder.encode(run), Uint8Array.of(code - 0xdc00));
      run = "";
    } else run += character;
  }
  return [...parts, encoder.encode(run)];
}

function download(name, words, type) {
  const link = Object.assign(make("a"), { download: name, href: URL.createObjectURL(new Blob(bytes(words), { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// As in suspects.csv, an apostrophe keeps a spreadsheet from running a name as a formula.
function field(words) {
  const safe = /^[=+\-@\t\r\n']/.test(words) ? `'${words}` : words;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csv() {
  const rows = sorted().map((one) => [one.name, one.split, one.own, one.action, one.to].map(field).join(","));
  return ["file,split,label,action,new_label", ...rows, ""].join("\r\n");
}

// In single quotes a shell interprets nothing, newlines included.
const quoted = (words) => `'${words.replaceAll("'", "'\\''")}'`;
const joined = (...parts) => parts.join("/").replace(/^\/\//, "/");

function moveLine(one) {
  const name = one.parts.at(-1);
  const folders = one.parts.slice(0, -1);
  const from = joined(one.root, ...one.parts);
  if (one.action === "remove") {
    const base = one.root.split("/").at(-1);
    return `move ${[from, "QUARANTINE", joined(base, ...folders), name, name].map((p) => (p === "QUARANTINE" ? '"$quarantine"' : quoted(p))).join(" ")}`;
  }
  const old = folders[one.classAt];
  const target = [...folders.slice(0, one.classAt), one.to, ...folders.slice(one.classAt + 1)];
  return `move ${[from, one.root, target.join("/"), name, `${old}-${name}`].map(quoted).join(" ")}`;
}

const SCRIPT = `#!/bin/sh
# Moves images that were marked in a data check of Vitreous. It deletes and overwrites nothing.
# Removed images go to a quarantine folder; give another one as the first argument.
# Images with a new label go to the folder of that class.
set -u
quarantine=\${1:-QUARANTINE}
moved=0
failed=0
complain() {
  printf '%s: %s\\n' "$1" "$(printf '%s' "$2" | LC_ALL=C tr -c '[:print:]' '?')" >&2
  failed=$((failed + 1))
}
move() { # FILE, ROOT, FOLDER below ROOT, NAME, and the name to use if NAME exists there
  folder=$2/$3
  to=$folder/$4
  if [ -e "$to" ] || [ -L "$to" ]; then to=$folder/$5; fi
  if [ ! -f "$1" ]; then complain 'not found' "$1"
  elif [ -e "$to" ] || [ -L "$to" ]; then complain 'not moved, a file of that name exists' "$to"
  elif mkdir -p -- "$folder" && mv -- "$1" "$to"; then moved=$((moved + 1))
  else complain 'not moved' "$1"
  fi
}
`;

function script() {
  const chosen = sorted().filter((one) => one.action !== "keep");
  const able = chosen.filter((one) => one.parts && (one.action === "remove" || usable(one)));
  const rest = chosen.length - able.length;
  const note = rest ? `# Not in this script but in the CSV: ${rest} of the marks, of images that are not files in class folders.\n` : "";
  const head = SCRIPT.replace("QUARANTINE", () => quoted(data.quarantine || "quarantine"));
  return `${head}${note}${able.map((one) => `${moveLine(one)}\n`).join("")}printf 'moved %d, not moved %d\\n' "$moved" "$failed"\n[ "$failed" -eq 0 ]\n`;
}

// A class name that is not the name of one folder cannot be the target of a move.
const usable = (one) => one.classAt >= 0 && one.to && !one.to.includes("/") && ![".", ".."].includes(one.to);

$("csv").addEventListener("click", () => download("fixes.csv", csv(), "text/csv"));
$("script").addEventListener("click", () => download("fixes.sh", script(), "application/x-sh"));
show();
