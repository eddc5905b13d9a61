// What is chosen, and the parts of the page that follow it. The choice lives in the address hash.

const PAGE = 200;

class Page {
  constructor(report) {
    this.report = report;
    this.chosen = {}; // group, leaf, job, attempt, device: as text
    this.sorted = {}; // table id -> "column" or "-column"
    this.shown = {};
    this.heads = new Map();
    this.folds = this.idleAlike();
    this.readHash();
    this.bindWaterfall();
    this.bindTools();
    this.bindTables();
    if (byId("chart")) this.startChart();
    new Plots(report, byId("tip"));
    this.apply();
    addEventListener("hashchange", () => {
      if (location.hash === this.hash) return;
      this.readHash();
      if (this.chart) this.chart.show(...this.viewWanted());
      this.apply();
    });
  }

  // ---- the address

  readHash() {
    const known = new URLSearchParams(location.hash.slice(1));
    const read = (name) => known.get(name) || undefined;
    this.chosen = Object.fromEntries(["group", "leaf", "job", "attempt", "device"].map((name) => [name, read(name)]));
    this.find = read("find") || "";
    this.order = read("order") || "fleet";
    this.wantedView = [read("from"), read("to")].map((text) => text === undefined ? NaN : Number(text));
    this.sorted = {};
    for (const [name, value] of known) if (name.startsWith("sort.")) this.sorted[name.slice(5)] = value;
    this.compact = known.has("compact") ? known.get("compact") === "1" : false;
    this.idleOpen = known.get("idle") === "1";
  }

  writeHash() {
    const known = new URLSearchParams();
    const put = (name, value) => { if (value !== undefined && value !== "") known.set(name, value); };
    Object.entries(this.chosen).forEach(([name, value]) => put(name, value));
    put("find", this.find);
    if (this.order !== "fleet") put("order", this.order);
    if (this.compact) put("compact", "1");
    if (this.idleOpen) put("idle", "1");
    for (const id of Object.keys(this.sorted).sort()) put(`sort.${id}`, this.sorted[id]);
    if (this.chart) {
      const { from, to } = this.chart.gantt.view;
      if (from > 0 || to < this.report.length) { put("from", String(Math.round(from))); put("to", String(Math.round(to))); }
    }
    const text = known.toString();
    this.hash = text ? `#${text}` : "";
    if (location.hash !== this.hash) history.replaceState(null, "", this.hash || location.pathname + location.search);
  }

  viewWanted() {
    const [from, to] = this.wantedView;
    return from >= 0 && to > from ? [from, to] : [0, this.report.length];
  }

  // ---- the choice

  choose(change) {
    for (const [name, value] of Object.entries(change)) this.chosen[name] = this.chosen[name] === value ? undefined : value;
    if ("leaf" in change) this.chosen.group = undefined;
    if ("group" in change) this.chosen.leaf = undefined;
    if ("job" in change && !("attempt" in change)) this.chosen.attempt = undefined;
    this.apply();
  }

  apply() {
    this.matches = this.matchContexts();
    this.markWaterfall();
    this.drawFilters();
    for (const id of Object.keys(this.report.tables)) { this.shown[id] = PAGE; this.drawTable(id); }
    if (this.chart) this.updateChart();
    this.writeHash();
  }

  matchContexts() {
    const { group, leaf, job, attempt } = this.chosen;
    if (!group && !leaf && job === undefined && !attempt) return null;
    return Uint8Array.from(this.report.contexts, ([leafIndex, jobIndex, number]) => {
      const [name, itsGroup] = this.report.leaves[leafIndex];
      return (!group || itsGroup === group) && (!leaf || name === leaf)
        && (job === undefined || this.report.jobs[jobIndex][0] === job) && (!attempt || String(number) === attempt);
    });
  }

  // The attempts that spent any time on the chosen cause, as "jobIndex/attempt" and "jobIndex/".
  matchedAttempts() {
    if (!this.chosen.group && !this.chosen.leaf) return null;
    const found = new Set();
    this.report.contexts.forEach(([, job, attempt], k) => {
      if (this.matches[k]) found.add(`${job}/${attempt}`).add(`${job}/`);
    });
    return found;
  }

  bindWaterfall() {
    for (const button of document.querySelectorAll("#waterfall button")) {
      const change = button.dataset.leaf ? { leaf: button.dataset.leaf } : { group: button.dataset.group };
      button.addEventListener("click", () => this.choose(change));
      const row = button.closest("tr"), tip = byId("tip"), about = button.title || "all its causes";
      button.removeAttribute("title"); // the tip says it, and more
      const show = () => {
        if (!tip) return;
        tip.replaceChildren(this.facts([
          [button.textContent, about],
          ["time", row.querySelector("[data-exact]").dataset.exact],
          ["rows", this.ledger(change)],
        ]));
        tip.hidden = false;
        const box = row.getBoundingClientRect();
        tip.style.left = `${Math.max(8, Math.min(box.left + 150, innerWidth - tip.offsetWidth - 8))}px`;
        tip.style.top = `${box.bottom + tip.offsetHeight + 4 < innerHeight ? box.bottom + 4 : box.top - tip.offsetHeight - 4}px`;
      };
      const hide = () => { if (tip) tip.hidden = true; };
      row.addEventListener("pointerenter", show);
      row.addEventListener("pointerleave", hide);
      button.addEventListener("focus", () => { if (button.matches(":focus-visible")) show(); });
      button.addEventListener("blur", hide);
    }
  }

  markWaterfall() {
    for (const button of document.querySelectorAll("#waterfall button")) {
      const on = button.dataset.leaf ? button.dataset.leaf === this.chosen.leaf : button.dataset.group === this.chosen.group;
      button.setAttribute("aria-pressed", String(on));
      button.closest("tr").toggleAttribute("aria-current", on);
    }
  }

  drawFilters() {
    const bar = byId("filters");
    const chips = Object.entries(this.chosen).filter(([, value]) => value !== undefined).map(([name, value]) => {
      const chip = make("button", { type: "button", textContent: `${name} ${this.plain(name, value)} \u00d7`, title: `no longer only ${name} ${value}` });
      chip.addEventListener("click", () => this.choose({ [name]: value }));
      return chip;
    });
    bar.hidden = chips.length === 0;
    if (chips.length === 0) { bar.replaceChildren(); return; }
    bar.replaceChildren("only", ...chips, "rows:", make("code", { textContent: this.ledger(this.chosen) }));
  }

  plain(name, value) {
    if (name !== "job") return value;
    const job = this.report.jobs.find(([id]) => id === value);
    return job && job[2] && job[2] !== job[1] ? `${job[1]} (${job[2]})` : value;
  }

  ledger(filter) {
    const words = ["group", "leaf", "job", "device", "start", "end"].filter((name) => filter[name] !== undefined && filter[name] !== "");
    return [this.report.command, ...words.map((name) => `--${name} ${shellQuote(String(filter[name]))}`)].join(" ");
  }

  facts(pairs) {
    const list = make("dl", { className: "facts" });
    for (const [name, value] of pairs) if (value !== "" && value !== undefined) list.append(make("dt", {}, name), make("dd", {}, make("bdi", {}, value)));
    return list;
  }

  // ---- the chart

  startChart() {
    for (const id of ["tools", "chart", "hint"]) byId(id).hidden = false;
    const element = byId("chart");
    const gantt = new Gantt(element.querySelector("canvas"), this.report);
    gantt.compact = this.compact;
    this.chart = new Chart(element, gantt, {
      describe: (bar, track) => this.describeBar(bar, track),
      describeMarks: (marks) => this.describeMarks(marks),
      pinned: (bar, track) => this.pinned(bar, track),
      chosen: (bar) => { if (bar >= 0) this.choose({ leaf: this.report.leaves[this.report.contexts[this.report.bars.context[bar]][0]][0] }); },
      moved: () => this.moved(),
      unfold: (track) => this.unfold(track),
    });
    [gantt.view.from, gantt.view.to] = this.viewWanted();
    this.tellThinned();
  }

  // The address follows a pan once it rests: browsers refuse too many changes of it.
  moved() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.writeHash(), 150);
  }

  tellThinned() {
    const { in: before, out: after, joined, bucket } = this.report.thinned;
    const said = [];
    if (joined) said.push(`${grouped(before)} bars are drawn as ${grouped(after)}: neighbours with the same cause are one bar.`);
    if (bucket) said.push(`Bars shorter than ${duration(bucket)} are merged into the cause that has most of that time.`);
    if (this.report.unit > 1) said.push(`Edges are rounded to ${duration(this.report.unit)}.`);
    if (said.length) said.push("The waterfall and the tables are exact.");
    byId("thinned").textContent = said.join(" ");
  }

  updateChart() {
    const gantt = this.chart.gantt, { job, attempt } = this.chosen;
    gantt.choose(this.matches);
    gantt.rows = this.folded(this.visibleTracks());
    gantt.cursor = null;
    gantt.compact = this.compact;
    gantt.showsMark = (mark) => (job === undefined || (mark[4] >= 0 && this.report.jobs[mark[4]][0] === job)) && (!attempt || String(mark[5]) === attempt);
    byId("compact").checked = this.compact;
    const fold = byId("fold");
    fold.checked = !this.idleOpen;
    fold.closest("label").hidden = this.folds.size === 0;
    byId("order").value = this.order;
    byId("find").value = this.find;
    this.chart.layout();
  }

  // Tracks that never had a job and show the same causes in the same order: first track -> all of them.
  idleAlike() {
    const { offsets, context } = this.report.bars, alike = new Map();
    this.report.tracks.forEach((_, track) => {
      const causes = [];
      for (let bar = offsets[track]; bar < offsets[track + 1]; bar++) {
        const [leaf, job] = this.report.contexts[context[bar]], [name, group] = this.report.leaves[leaf];
        if (this.report.jobs[job][0] !== "" || group === "down") return;
        if (causes[causes.length - 1] !== name) causes.push(name);
      }
      const key = causes.join();
      if (causes.length && !alike.has(key)) alike.set(key, []);
      if (causes.length) alike.get(key).push(track);
    });
    return new Map([...alike.values()].filter((tracks) => tracks.length > 1).map((tracks) => [tracks[0], tracks]));
  }

  // Idle devices that look alike are one row, unless somebody looks for one of them.
  folded(tracks) {
    const counts = new Map();
    this.chart.gantt.folded = counts;
    if (this.idleOpen || this.find || this.chosen.device !== undefined) return tracks;
    const first = new Map();
    for (const [lead, all] of this.folds) for (const track of all) first.set(track, lead);
    return tracks.filter((track) => {
      const lead = first.get(track);
      if (lead === undefined) return true;
      counts.set(lead, (counts.get(lead) || 0) + 1);
      return lead === track;
    });
  }

  unfold(track) {
    if (!this.chart.gantt.folded.has(track)) return false;
    this.idleOpen = true;
    this.apply();
    return true;
  }

  visibleTracks() {
    const { offsets, context, start, end } = this.report.bars, found = [], spent = new Float64Array(this.report.tracks.length);
    const wanted = this.find.toLowerCase();
    const jobsFound = new Set(wanted ? this.report.jobs.flatMap(([id, , name], k) => `${id} ${name}`.toLowerCase().includes(wanted) ? [k] : []) : []);
    this.report.tracks.forEach((track, k) => {
      if (this.chosen.device !== undefined && track[0] !== this.chosen.device) return;
      let byName = !wanted || `${track[1]} ${track[2]} ${track[3]}`.toLowerCase().includes(wanted), any = !this.matches;
      for (let bar = offsets[k]; bar < offsets[k + 1]; bar++) {
        if (!byName && jobsFound.has(this.report.contexts[context[bar]][1])) byName = true;
        if (this.matches && this.matches[context[bar]]) { any = true; spent[k] += end[bar] - start[bar]; }
      }
      if (byName && any) found.push(k);
    });
    if (this.order === "most" && this.matches) found.sort((a, b) => spent[b] - spent[a] || a - b);
    return found;
  }

  describeBar(bar, track) {
    const { bars, contexts, leaves, jobs, tracks, unit } = this.report;
    const [leafIndex, jobIndex, attempt, how, observer] = contexts[bars.context[bar]];
    const [leaf, group, , , about] = leaves[leafIndex], [label, shown, node, model] = tracks[track];
    const ns = Math.round((bars.end[bar] - bars.start[bar]) * unit), at = bars.start[bar] * unit;
    const pure = 1000 - bars.impure[bar], step = bars.step[bar], last = step + bars.further[bar];
    const [start, end] = [bars.start[bar], bars.end[bar]].map((units) => this.report.startNs + BigInt(Math.round(units * unit)));
    const filter = { leaf, job: jobs[jobIndex][0], device: tracks[track][4] || label, start, end };
    return this.facts([
      [group === leaf ? leaf : `${group} / ${leaf}`, about],
      ["devices", this.foldedCount(track)],
      ["device", `${shown}${model ? `, ${model}` : ""}${node ? `, node ${node}` : ""}`],
      ["time", `${duration(ns)} (${grouped(ns)} ns)`],
      ["from", `${clockTime(this.report, bars.start[bar])}, ${duration(at)} after the start`],
      ["to", clockTime(this.report, bars.end[bar])],
      ["job", filter.job && `${this.plain("job", filter.job)}, attempt ${attempt}`],
      ["step", step < 0 ? "" : last > step ? `${grouped(step)} to ${grouped(last)}` : grouped(step)],
      ["known", `${how}, by ${observer}`],
      ["merged", pure < 1000 ? `${(pure / 10).toFixed(1)} % of it is ${leaf}, the rest is shorter than a bar` : ""],
      ["rows", this.ledger(filter)],
    ]);
  }

  foldedCount(track) {
    const count = this.chart.gantt.folded.get(track);
    return count ? `${grouped(count)} idle ones like this; click or Enter shows each` : "";
  }

  describeMarks(marks) {
    const shown = marks.slice(0, 8).map(([at, , , , job, attempt, rank, kind, text]) => [kind,
      [text, job >= 0 ? this.report.jobs[job][1] : "", attempt === null ? "" : `attempt ${attempt}`, rank === null ? "" : `rank ${rank}`,
        clockTime(this.report, at)].filter(Boolean).join(", ")]);
    if (marks.length > 8) shown.push(["more", `${marks.length - 8} events here; zoom in`]);
    return this.facts(shown);
  }

  pinned(bar, track) {
    const detail = byId("detail");
    detail.replaceChildren(...(bar >= 0 ? [this.describeBar(bar, track)] : []));
    if (bar < 0) return;
    detail.style.setProperty("--c", this.report.leaves[this.report.contexts[this.report.bars.context[bar]][0]][2]);
    const command = detail.querySelector("dd:last-child");
    command.replaceChildren(make("code", {}, command.textContent));
  }

  bindTools() {
    const tools = byId("tools");
    if (!tools) return;
    const bind = (id, type, act) => byId(id).addEventListener(type, (event) => { act(event.target); this.apply(); });
    bind("find", "input", (target) => { this.find = target.value; });
    bind("order", "change", (target) => { this.order = target.value; });
    bind("compact", "change", (target) => { this.compact = target.checked; });
    bind("fold", "change", (target) => { this.idleOpen = !target.checked; });
    const does = { in: () => this.chart.zoom(0.5), out: () => this.chart.zoom(2), all: () => this.chart.all() };
    for (const button of tools.querySelectorAll("[data-do]")) button.addEventListener("click", () => does[button.dataset.do]());
  }

  // ---- the tables

  bindTables() {
    for (const table of document.querySelectorAll("[data-table]")) {
      const id = table.dataset.table, note = table.closest("section").querySelector(".note");
      const heads = [...table.querySelectorAll("th")];
      heads.forEach((head, column) => {
        const button = make("button", { type: "button", textContent: head.textContent });
        button.addEventListener("click", () => {
          this.sorted[id] = this.sorted[id] === String(column) ? `-${column}` : String(column);
          this.drawTable(id);
          this.writeHash();
        });
        head.replaceChildren(button);
      });
      this.heads.set(id, { heads, body: table.tBodies[0], note, count: table.closest("section").querySelector("small") });
    }
  }

  rowsOf(id) {
    const { job, attempt, device } = this.chosen, attempts = this.matchedAttempts(), find = this.find.toLowerCase();
    const tracks = id === "devices" && this.matches ? new Set(this.visibleTracks().map((k) => this.report.tracks[k][0])) : null;
    const rows = this.report.tables[id].rows.filter(([cells, jobIndex, number, label]) => {
      if (id === "devices" ? (tracks && !tracks.has(label)) || (device !== undefined && label !== device)
        : (job !== undefined && this.report.jobs[jobIndex][0] !== job) || (attempt && number !== null && String(number) !== attempt)
          || (attempts && !attempts.has(`${jobIndex}/${number === null ? "" : number}`))) return false;
      return !find || cells.some((cell) => (typeof cell === "string" ? cell : cell[0]).toLowerCase().includes(find));
    });
    return this.sortRows(rows, this.sorted[id]);
  }

  sortRows(rows, by) {
    if (by === undefined || Number.isNaN(Number(by))) return rows;
    const column = Math.abs(Number(by)), sign = by.startsWith("-") ? -1 : 1;
    const key = (row) => typeof row[0][column] === "string" ? row[0][column] : row[0][column][1];
    const before = (a, b) => typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return rows.slice().sort((a, b) => sign * before(key(a), key(b)));
  }

  drawTable(id) {
    const parts = this.heads.get(id), table = this.report.tables[id];
    if (!parts) return;
    const rows = this.rowsOf(id), classes = parts.heads.map((head) => head.className), names = parts.heads.map((head) => head.textContent);
    parts.body.replaceChildren(...rows.slice(0, this.shown[id]).map((row) => this.tableRow(id, row, classes, names)));
    parts.heads.forEach((head, column) => {
      const by = this.sorted[id];
      if (by !== undefined && Math.abs(Number(by)) === column) head.setAttribute("aria-sort", by.startsWith("-") ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const all = table.rows.length + table.leftOut;
    parts.count.textContent = rows.length === table.rows.length ? grouped(all) : `${grouped(rows.length)} of ${grouped(all)}`;
    this.drawNote(id, rows.length, parts.note, table.leftOut);
  }

  drawNote(id, count, note, leftOut) {
    const rest = count - this.shown[id];
    note.replaceChildren(leftOut ? `${grouped(leftOut)} rows did not fit into this file; the store has them. ` : "");
    if (count === 0) note.append("No row matches what is chosen above.");
    if (rest <= 0) return;
    const more = make("button", { type: "button", className: "more", textContent: `show ${grouped(Math.min(rest, 5 * PAGE))} more of ${grouped(rest)}` });
    more.addEventListener("click", () => { this.shown[id] += 5 * PAGE; this.drawTable(id); });
    note.append(more);
  }

  tableRow(id, [cells, jobIndex, attempt, label], classes, heads) {
    const row = make("tr");
    cells.forEach((cell, column) => {
      const text = typeof cell === "string" ? cell : cell[0];
      const change = this.linkOf(id, column, jobIndex, attempt, label);
      const content = change && text ? make("button", { type: "button", className: "link", title: text }, make("bdi", {}, text)) : make("bdi", {}, text);
      if (change && text) content.addEventListener("click", () => this.choose(change));
      const td = make("td", { className: classes[column] }, content);
      td.dataset.head = heads[column];
      row.append(td);
    });
    return row;
  }

  linkOf(id, column, jobIndex, attempt, label) {
    if (id === "devices") return column === 0 ? { device: label } : null;
    const job = this.report.jobs[jobIndex][0];
    if (column === { jobs: 0, attempts: 0, events: 2 }[id]) return { job };
    if (attempt !== null && column === { attempts: 1, events: 3 }[id]) return { job, attempt: String(attempt) };
    return null;
  }
}

readReport().then((report) => { window.page = new Page(report); document.documentElement.dataset.ready = "1"; }).catch((error) => {
  const says = typeof DecompressionStream === "undefined" ? "This browser is too old to draw the chart" : `The chart could not be drawn (${error.message})`;
  document.querySelector("main").prepend(make("p", { className: "empty", textContent: `${says}; the tables below are complete up to their first rows.` }));
  throw error;
});
