// The page is complete without this script. It adds values under the pointer and sortable tables.

const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));

function shown(value, kind) {
  if (kind === "percent") return (100 * value).toFixed(2) + "%";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(2).replace("e+", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

// The curves of a chart in its own units: paths are drawn in a square of 1000, with y downwards.
function curves(chart) {
  const [x0, x1] = chart.dataset.x.split(" ").map(Number);
  const [y0, y1] = chart.dataset.y.split(" ").map(Number);
  const up = "log" in chart.dataset ? (share) => y0 * (y1 / y0) ** share : (share) => y0 + (y1 - y0) * share;
  return [...chart.querySelectorAll("path.line[data-name]:not(.raw)")].map((path) => ({
    name: path.dataset.name,
    colour: getComputedStyle(path).stroke,
    points: [...path.getAttribute("d").matchAll(/[ML]([-\d.]+),([-\d.]+)/g)].map(([, x, y]) => [
      x0 + ((x1 - x0) * x) / 1000,
      up(1 - y / 1000),
    ]),
  }));
}

function line(words, colour) {
  const span = make("span");
  if (colour) span.append(Object.assign(make("i"), { style: `background:${colour}` }));
  span.append(words);
  return span;
}

function hover(chart) {
  const plot = chart.querySelector(".plot");
  const [x0, x1] = chart.dataset.x.split(" ").map(Number);
  const guide = Object.assign(make("div", "", "guide"), { hidden: true });
  const box = Object.assign(make("div", "", "readout"), { hidden: true });
  plot.append(guide, box);

  plot.addEventListener("pointermove", (event) => {
    const place = plot.getBoundingClientRect();
    const pointer = x0 + ((x1 - x0) * (event.clientX - place.left)) / place.width;
    const lines = curves(chart);
    const x = nearest(lines.flatMap((curve) => curve.points), pointer)[0];
    const rows = [line(`${chart.dataset.xName} ${shown(x, "number")}`)];
    for (const curve of lines) {
      const [at, value] = nearest(curve.points, x);
      if (Math.abs(at - x) <= 0.05 * (x1 - x0)) rows.push(line(`${curve.name} ${shown(value, chart.dataset.kind)}`, curve.colour));
    }
    box.replaceChildren(...rows);
    guide.hidden = box.hidden = false;
    const left = ((x - x0) / (x1 - x0)) * place.width;
    guide.style.left = `${left}px`;
    const right = left + box.offsetWidth + 12 < place.width;
    box.style.left = `${Math.max(0, right ? left + 10 : left - box.offsetWidth - 10)}px`;
  });
  plot.addEventListener("pointerleave", () => (guide.hidden = box.hidden = true));
}

function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = Object.assign(make("button"), { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value;
      const rows = [...body.rows].sort((a, b) => {
        const [p, q] = [key(a), key(b)];
        if (p === "" || q === "") return (p === "") - (q === ""); // rows without a value come last in both directions
        return direction * (column === 0 ? p.localeCompare(q, undefined, { numeric: true }) : p - q);
      });
      body.append(...rows);
    });
  });
}

document.querySelectorAll(".chart").forEach(hover);
document.querySelectorAll("table.classes").forEach(sortable);
