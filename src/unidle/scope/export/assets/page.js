// What is chosen, and the parts of the page that follow it. The choice lives in the address fragment.

const TEXTS = { show: "all", thread: "", compare: "", colour: "kind", find: "", sort: "" };
const NUMBERS = { group: -1, device: -1, category: -1 };
const FLAGS = ["inverted", "upward", "lines", "topLines"];
const MEMORY = { live: "memory, live", allocated: "memory, allocated" };
const KIND_NAMES = { python: "Python", native: "native", kernel: "kernel", wait: "waiting", device: "device" };

class Page {
  constructor(stacks) {
    this.stacks = stacks;
    this.told = stacks.told;
    this.flame = new Flame(byId("flame"), document.querySelector("#flame canvas"));
    this.readHash();
    this.history = [];
    byId("graph").hidden = false;
    this.top = new Top(this);
    this.fillControls();
    this.bind();
    this.draw();
  }

  // What is compared with, by name.
  get base() {
    const { compare } = this.choice, name = compare === "before" ? this.told.before : this.told.groups[Number(compare.slice(1))];
    return name.length > 28 ? `${name.slice(0, 27)}…` : name;
  }

  get inMemory() { return this.choice.show in MEMORY; }

  // ---- the address

  readHash() {
    const known = new URLSearchParams(location.hash.slice(1)), choice = this.choice = {};
    for (const name in TEXTS) choice[name] = known.get(name) ?? TEXTS[name];
    for (const name in NUMBERS) {
      const value = Number(known.get(name) ?? -1);
      choice[name] = Number.isInteger(value) ? value : -1;
    }
    for (const name of FLAGS) choice[name] = known.get(name) === "1";
    this.path = (known.get("zoom") || "").split(".").filter(Boolean).map(Number);
    this.check();
  }

  // An address from elsewhere may name what this file has not.
  check() {
    const { choice, told } = this, time = this.stacks.columns["time.node"].length, held = this.stacks.columns["held.node"].length;
    const shows = [...(time || !held ? ["all", "on", "off", "runq"] : []), ...(held ? Object.keys(MEMORY) : [])];
    if (!shows.includes(choice.show)) choice.show = shows[0];
    this.shows = shows;
    for (const [name, list] of [["group", told.groups], ["device", told.devices], ["category", told.categories]]) {
      if (!(choice[name] >= -1 && choice[name] < list.length)) choice[name] = -1;
    }
    const [kind, rest] = [choice.thread.slice(0, 2), choice.thread.slice(2)];
    const good = kind === "n:" ? told.threads.some((t) => t[1] === rest) : kind === "t:" && told.threads[Number(rest)];
    if (choice.thread && !good) choice.thread = "";
    if (!this.compares().some(([value]) => value === choice.compare)) choice.compare = "";
    if (choice.colour !== "category" || !told.categories.length) choice.colour = "kind";
  }

  writeHash() {
    const known = new URLSearchParams(), { choice } = this;
    for (const name in TEXTS) if (choice[name] !== TEXTS[name] && !(name === "show" && choice.show === this.shows[0])) known.set(name, choice[name]);
    for (const name in NUMBERS) if (choice[name] >= 0) known.set(name, choice[name]);
    for (const name of FLAGS) if (choice[name]) known.set(name, "1");
    if (this.path.length) known.set("zoom", this.path.join("."));
    const text = known.toString();
    this.hash = text ? `#${text}` : "";
    if (location.hash !== this.hash) history.replaceState(null, "", this.hash || location.pathname + location.search);
  }

  // ---- controls

  compares() {
    const own = this.told.groups.map((name, k) => [`g${k}`, name]);
    return [["", "nothing"], ...(this.told.before === null ? [] : [["before", this.told.before]]), ...(own.length > 1 ? own : [])];
  }

  fillControls() {
    const fill = (id, rows) => byId(id).replaceChildren(...rows.map(([value, text]) => make("option", { value, textContent: text })));
    const { told } = this;
    fill("group", [["-1", `all ${told.groups.length}`], ...told.groups.map((name, k) => [String(k), name])]);
    fill("device", [["-1", "all"], ...told.devices.map((name, k) => [String(k), name])]);
    fill("compare", this.compares());
    byId("of-group").hidden = told.groups.length < 2;
    byId("of-compare").hidden = this.compares().length < 2;
    byId("of-colour").hidden = !told.categories.length;
  }

  threadOptions() {
    const { told, choice } = this, names = new Map();
    told.threads.forEach(([group, name, tid, pid, side], k) => {
      if (side !== 0 || (choice.group >= 0 && group !== choice.group)) return;
      if (!names.has(name)) names.set(name, []);
      names.get(name).push([`t:${k}`, `${name || "thread"} (tid ${tid}${told.groups.length > 1 && choice.group < 0 ? `, ${told.groups[group]}` : ""})`]);
    });
    const many = [...names].filter(([, rows]) => rows.length > 1).map(([name, rows]) => [`n:${name}`, `${name || "unnamed"}: all ${rows.length}`]);
    const rows = [["", "all"], ...many, ...[...names.values()].flat()];
    if (choice.thread && !rows.some(([value]) => value === choice.thread)) rows.push([choice.thread, choice.thread.slice(2)]);
    byId("thread").replaceChildren(...rows.map(([value, text]) => make("option", { value, textContent: text })));
    byId("of-thread").hidden = this.inMemory || rows.length < 3;
    byId("of-device").hidden = !this.inMemory || told.devices.length < 2;
  }

  syncControls() {
    const { choice } = this;
    this.threadOptions();
    for (const id of ["thread", "compare", "colour", "find"]) if (byId(id).value !== choice[id]) byId(id).value = choice[id];
    for (const id of ["group", "device"]) byId(id).value = String(choice[id]);
    for (const id of ["inverted", "upward", "lines"]) byId(id).checked = choice[id];
    byId("top-lines").checked = choice.topLines;
    document.querySelectorAll("#budget button").forEach((button) => {
      const k = this.told.categories.indexOf(button.dataset.category);
      button.disabled = k < 0;
      button.setAttribute("aria-pressed", String(k >= 0 && k === choice.category));
    });
    this.drawShows();
  }

  drawShows() {
    const sums = this.shows.map((show) => this.sumOf(show));
    byId("shows").replaceChildren(...this.shows.map((show, k) => {
      const name = show in MEMORY ? MEMORY[show] : show === "all" ? "all time" : this.told.states[["on", "off", "runq"].indexOf(show)];
      const amount = show in MEMORY ? bytesText(sums[k]) : show === "all" ? timeText(sums[k]) : percentText(sums[k], sums[0]);
      const button = make("button", { textContent: `${name} · ${amount}`, onclick: () => this.change({ show, category: show in MEMORY ? -1 : this.choice.category }) });
      button.dataset.show = show;
      button.setAttribute("aria-pressed", String(show === this.choice.show));
      return button;
    }));
  }

  sumOf(show) {
    const c = this.stacks.columns, choice = { ...this.choice, show, side: 0 };
    let sum = 0;
    if (show in MEMORY) {
      const bytes = c[`held.${show}_bytes`];
      for (let k = 0; k < bytes.length; k++) if (c["held.side"][k] === 0 && (choice.group < 0 || c["held.group"][k] === choice.group) && (choice.device < 0 || c["held.device"][k] === choice.device)) sum += bytes[k];
      return sum;
    }
    const takes = this.stacks.threadsOf(choice), state = ["on", "off", "runq"].indexOf(show);
    for (let k = 0; k < c["time.node"].length; k++) {
      if (takes[c["time.thread"][k]] && (state < 0 || c["time.state"][k] === state) && (choice.category < 0 || c["time.category"][k] === choice.category)) sum += c["time.ns"][k];
    }
    return sum;
  }

  bind() {
    for (const id of ["thread", "compare", "colour"]) byId(id).onchange = () => this.change({ [id]: byId(id).value });
    for (const id of ["group", "device"]) byId(id).onchange = () => this.change({ [id]: Number(byId(id).value) });
    for (const id of ["inverted", "lines"]) byId(id).onchange = () => { this.path = []; this.change({ [id]: byId(id).checked }); };
    byId("upward").onchange = () => this.change({ upward: byId("upward").checked });
    byId("top-lines").onchange = () => this.change({ topLines: byId("top-lines").checked });
    byId("find").oninput = () => { this.choice.find = byId("find").value; this.search(); this.writeHash(); };
    byId("find").onkeydown = (event) => { if (event.key === "Escape") { event.stopPropagation(); this.find(""); byId("flame").focus(); } };
    document.querySelectorAll("#budget button").forEach((button) => {
      const k = this.told.categories.indexOf(button.dataset.category);
      button.onclick = () => this.change({ category: this.choice.category === k ? -1 : k });
    });
    byId("save-svg").onclick = () => save("flame.svg", "image/svg+xml", svgOf(this.flame, (node) => this.describe(node).map((row) => row.join(": ")).join("\n"), this.told.quality));
    byId("save-folded").onclick = () => save("stacks.folded", "text/plain", foldedOf(this.graph, this.inMemory ? 1 : 1000, this.told.quality));
    this.bindFlame();
    addEventListener("hashchange", () => { if (location.hash !== this.hash) { this.readHash(); this.apply(); } });
    addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (this.flame.width !== byId("flame").clientWidth) this.flame.layout(); }).observe(byId("flame"));
  }

  bindFlame() {
    const scroller = byId("flame"), at = (event) => {
      const box = this.flame.canvas.getBoundingClientRect();
      return this.flame.rectAt(event.clientX - box.left, event.clientY - box.top);
    };
    scroller.onpointermove = (event) => {
      const rect = at(event), node = rect ? rect.node : null;
      if (node !== this.flame.hovered) { this.flame.hovered = node; this.flame.draw(); }
      this.tip(node, event);
    };
    scroller.onpointerleave = () => { this.flame.hovered = null; this.flame.draw(); byId("tip").hidden = true; };
    scroller.onclick = (event) => { const rect = at(event); if (rect) this.zoom(rect.node); };
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const acts = {
      "/": () => byId("find").focus(), i: () => { this.path = []; this.change({ inverted: !this.choice.inverted }); },
      b: () => this.change({ upward: !this.choice.upward }), 0: () => this.zoom(this.graph.root), Escape: () => this.back(),
    };
    if (document.activeElement === byId("flame")) {
      const down = this.choice.upward ? -1 : 1;
      Object.assign(acts, {
        ArrowDown: () => this.step(down), ArrowUp: () => this.step(-down), ArrowRight: () => this.side(1), ArrowLeft: () => this.side(-1),
        Enter: () => this.zoom(this.flame.cursor || this.graph.root),
      });
    }
    const act = acts[event.key];
    if (act) { event.preventDefault(); act(); }
  }

  // ---- moving

  step(by) {
    const { flame } = this, node = flame.cursor;
    if (!node) return this.point(this.flame.focus);
    const next = by > 0 ? this.graph.children(node).find((kid) => flame.rectOf(kid)) : node.parent;
    return this.point(next || node);
  }

  side(by) {
    const { flame } = this, node = flame.cursor || flame.focus, row = flame.rows[node.depth] || [];
    const next = row[row.findIndex((rect) => rect.node === node) + by];
    this.point(next ? next.node : node);
  }

  point(node) {
    this.flame.cursor = node;
    if (node) this.flame.reveal(node);
    this.flame.draw();
    this.detail();
  }

  zoom(node) {
    if (node === this.flame.focus) return;
    this.history.push(this.path);
    this.focusOn(node);
  }

  back() {
    if (!this.path.length) return this.find("");
    this.path = this.history.pop() || [];
    return this.focusOn(this.resolve());
  }

  focusOn(node) {
    this.path = [];
    for (let at = node; at.parent; at = at.parent) this.path.unshift(at.key);
    this.flame.cursor = node.parent ? node : null;
    this.flame.show(this.graph, node);
    byId("flame").scrollTop = this.choice.upward ? byId("flame").scrollHeight : 0;
    this.flame.reveal(node);
    this.crumbs();
    this.detail();
    this.writeHash();
  }

  // The node at the path, as far as this graph has it.
  resolve() {
    let node = this.graph.root;
    for (const key of this.path) {
      const kid = this.graph.children(node).find((one) => one.key === key);
      if (!kid) break;
      node = kid;
    }
    return node;
  }

  // ---- drawing

  change(changes) {
    Object.assign(this.choice, changes);
    this.apply();
  }

  apply() {
    this.draw();
    this.top.draw();
  }

  draw() {
    const { choice, stacks, flame } = this, { compare } = choice;
    const now = stacks.weigh({ ...choice, side: 0 });
    const other = compare === "before" ? { ...choice, side: 1 } : { ...choice, side: 0, group: Number(compare.slice(1)) };
    this.graph = new Graph(stacks, now, compare ? stacks.weigh(other) : null, choice);
    Object.assign(flame, { upward: choice.upward, colour: choice.colour, cursor: null, hovered: null });
    this.syncControls();
    const empty = this.graph.root.width === 0;
    byId("nothing").hidden = !empty;
    byId("nothing").textContent = this.sumOf(this.shows[0]) > 0 ? "Nothing was seen of this choice; choose another time, process or thread above." : "Nothing was seen at all. Look longer, or at another process: unidle profile PID --seconds 30";
    for (const id of ["flame", "under", "keys", "detail", "crumbs", "top"]) byId(id).hidden = empty;
    this.match();
    this.focusOn(this.resolve());
    this.legend();
  }

  find(text) {
    this.choice.find = text;
    byId("find").value = text;
    this.search();
    this.writeHash();
  }

  match() {
    const { flame, choice } = this, box = byId("find");
    let found = null, wrong = "";
    if (choice.find) {
      try { found = this.graph.search(new RegExp(choice.find, /[A-Z]/.test(choice.find) ? "u" : "iu")); }
      catch (error) { wrong = `no regular expression: ${error.message.split(": ").pop()}`; }
    }
    flame.hit = found ? found.hit : null;
    box.setAttribute("aria-invalid", String(Boolean(wrong)));
    const before = found && this.graph.before ? ` (${percentText(found.before, 1)} in ${this.base})` : "";
    byId("matches").textContent = found ? `${wholeText(found.functions)} found, ${percentText(found.now, 1)}${before}` : wrong;
  }

  search() {
    this.match();
    this.flame.draw();
    this.top.draw();
  }

  amount(value) { return this.inMemory ? bytesText(value) : timeText(value); }

  exact(value) { return this.inMemory ? `${wholeText(value)} B` : `${wholeText(value)} ns`; }

  describe(node) {
    const { graph } = this, { now, before } = graph, counts = this.inMemory ? "allocations" : "samples";
    const rows = [["", graph.name(node)]];
    const place = node === graph.root ? "" : this.stacks.place(node.key, this.choice.lines);
    if (node !== graph.root) rows.push(["kind", KIND_NAMES[this.told.kinds[this.stacks.kind(node.key, this.choice.lines)]]]);
    if (place) rows.push(["at", place]);
    rows.push([this.inMemory ? "bytes" : "time", `${this.amount(node.a)} (${this.exact(node.a)}), ${percentText(node.a, now.whole)} of all`]);
    if (this.flame.focus !== graph.root && this.flame.focus !== node) rows.push(["of the zoomed", percentText(node.a, this.flame.focus.a)]);
    if (!graph.inverted && node.self > 0) rows.push(["itself", `${this.amount(node.self)}, ${percentText(node.self, now.whole)}`]);
    rows.push([counts, wholeText(node.samples)]);
    if (before) rows.push([`in ${this.base}`, `${this.amount(node.b)}, ${percentText(node.b, before.whole)} of all`], ["change", `${pointsText(graph.points(node))} points (${graph.hint(node.samples, node.samplesBefore)})`]);
    const lines = graph.linesOf(node);
    if (lines.length && (lines.length > 1 || lines[0][1] > 0)) rows.push(["lines", lines.slice(0, 5).map(([line, weight]) => `${line}: ${percentText(weight, node.a)}`).join(", ") + (lines.length > 5 ? ", …" : "")]);
    const category = this.told.categories.length && !this.inMemory ? graph.category(node) : -1;
    if (category >= 0) rows.push(["mostly", this.told.categories[category].replaceAll("_", " ")]);
    return rows;
  }

  tip(node, event) {
    const tip = byId("tip");
    tip.hidden = !node;
    if (!node) return;
    const [[, name], ...rows] = this.describe(node);
    tip.replaceChildren(make("b", { textContent: name }), make("dl", { className: "facts" }, ...rows.flatMap(([term, text]) => [make("dt", { textContent: term }), make("dd", { textContent: text })])));
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 10) : event.clientY + 18}px`;
  }

  detail() {
    const node = this.flame.cursor;
    const [[, name], ...rows] = node ? this.describe(node) : [["", ""]];
    byId("detail").replaceChildren(...(node ? [make("b", { textContent: name }), ` ${rows.map((row) => row.join(" ")).join(" · ")}`] : []));
  }

  crumbs() {
    const path = [];
    for (let node = this.flame.focus; node; node = node.parent) path.unshift(node);
    const shown = path.length > 9 ? [...path.slice(0, 3), null, ...path.slice(-5)] : path;
    byId("crumbs").replaceChildren(...shown.flatMap((node, k) => {
      const link = node ? make("button", { textContent: this.graph.name(node), disabled: node === this.flame.focus, onclick: () => this.zoom(node) }) : "…";
      return k ? [" › ", link] : [link];
    }));
  }

  legend() {
    const { graph, told } = this, rows = [];
    const add = (colour, text) => { const mark = make("i"); mark.style.setProperty("--c", colour); rows.push(make("span", {}, mark, text)); };
    if (graph.before) {
      add(hexOf(RISE), `a larger share than in ${this.base}`);
      add(hexOf(FALL), "a smaller one");
      rows.push(make("span", { className: "quiet", textContent: "width: the mean of both shares" }));
    } else if (this.choice.colour === "category") {
      const sums = graph.categoryTotals().map((totals) => (totals ? totals.total[0] : 0));
      sums.map((sum, k) => [sum, k]).filter(([sum]) => sum > 0).sort((p, q) => q[0] - p[0]).forEach(([sum, k]) => add(told.colours[told.categories[k]], `${told.categories[k].replaceAll("_", " ")} ${percentText(sum, graph.now.whole)}`));
    } else {
      const sums = told.kinds.map(() => 0), { frame, columns, size } = this.stacks;
      for (let n = 1; n < size; n++) sums[told.functions[columns.function[frame[n]]][0]] += graph.now.own[n];
      sums.forEach((sum, kind) => { if (sum > 0) add(KIND_COLOURS[kind], `${KIND_NAMES[told.kinds[kind]]} ${percentText(sum, graph.now.whole)}`); });
    }
    byId("legend").replaceChildren(...rows);
  }
}

readProfile().then((stacks) => {
  const page = window.page = new Page(stacks);
  requestAnimationFrame(() => setTimeout(() => { // the graph is painted before the table is summed
    page.top.draw();
    document.documentElement.dataset.ready = "1";
  }));
}, (error) => {
  document.querySelector("main").prepend(make("p", { className: "empty", textContent: `This file cannot be read: ${error.message}` }));
  throw error;
});
