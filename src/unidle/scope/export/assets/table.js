// The functions or lines with the most of what is chosen, or with the largest change.

const TOP_ROWS = 50;

class Top {
  constructor(page) { this.page = page; }

  columns() {
    const { graph } = this.page, { now, before } = graph, what = this.page.inMemory ? "bytes" : "time";
    const rows = [
      ["self", `self ${what}`, (row) => row.self, (row) => this.page.amount(row.self)],
      ["self %", "self %", (row) => row.self, (row) => percentText(row.self, now.whole)],
      ["total", `total ${what}`, (row) => row.total, (row) => this.page.amount(row.total)],
      ["total %", "total %", (row) => row.total, (row) => percentText(row.total, now.whole)],
    ];
    if (!before) return rows;
    const points = (row) => 100 * ((now.whole > 0 ? row.total / now.whole : 0) - (before.whole > 0 ? row.before / before.whole : 0));
    return [
      ["change", "change, points", (row) => Math.abs(points(row)), (row) => pointsText(points(row))],
      ["sure", "", null, (row) => graph.hint(row.count, row.beforeCount)],
      ["before", `in ${this.page.base}`, (row) => row.before, (row) => percentText(row.before, before.whole)],
      ...rows.slice(3), ...rows.slice(0, 2),
    ];
  }

  draw() {
    const { page } = this, { choice, stacks, graph, flame } = page, lines = choice.topLines, columns = this.columns();
    const sort = columns.find(([id, , key]) => id === choice.sort && key) || columns[0];
    let rows = graph.table(lines);
    if (flame.hit) rows = rows.filter((row) => flame.hit[stacks.functionOf(row.key, lines)]);
    const shown = firstOf(rows, TOP_ROWS, (p, q) => sort[2](q) - sort[2](p) || q.total - p.total || p.key - q.key);
    const heads = columns.map(([id, name, key]) => {
      const head = make("th", { className: key ? "number" : "", scope: "col" }, key ? make("button", { textContent: name, onclick: () => { choice.sort = id; this.draw(); page.writeHash(); } }) : name);
      if (id === sort[0]) head.setAttribute("aria-sort", "descending");
      return head;
    });
    const body = shown.map((row) => {
      const name = stacks.name(row.key, lines), place = stacks.place(row.key, lines), mark = make("i");
      mark.style.setProperty("--c", KIND_COLOURS[stacks.kind(row.key, lines)]);
      const link = make("button", { textContent: name, title: "search for it", onclick: () => page.find(`^${stacks.label(stacks.functionOf(row.key, lines), false).replace(/[\\^$.*+?()[\]{}|\/]/g, "\\$&")}$`) });
      return make("tr", {}, make("td", { className: "name", title: name }, mark, link), ...columns.map(([, , key, text]) => make("td", { className: key ? "number" : "", textContent: text(row) })), make("td", { className: "place", title: place, textContent: shortened(place) }));
    });
    const table = document.querySelector("#top table");
    table.tHead.replaceChildren(make("tr", {}, make("th", { scope: "col", textContent: lines ? "line" : "function" }), ...heads, make("th", { scope: "col", textContent: "where" })));
    table.tBodies[0].replaceChildren(...body);
    byId("top-title").textContent = `${graph.before ? "What changed" : "Top"}: ${lines ? "lines" : "functions"}`;
    byId("more").textContent = rows.length > TOP_ROWS ? `${wholeText(rows.length - TOP_ROWS)} more; a search narrows the list.` : "";
  }
}

// The end of a long path: where it starts says the least.
function shortened(place) {
  const parts = place.split("/");
  return place.length > 44 && parts.length > 4 ? `…/${parts.slice(-3).join("/")}` : place;
}

// The first rows in order, without sorting all of them.
function firstOf(rows, many, order) {
  const kept = [];
  for (const row of rows) {
    if (kept.length === many && order(row, kept[many - 1]) >= 0) continue;
    let low = 0, high = kept.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (order(row, kept[middle]) < 0) high = middle; else low = middle + 1;
    }
    kept.splice(low, 0, row);
    if (kept.length > many) kept.pop();
  }
  return kept;
}
